"""Publish speeds and print the warnings. Run `nearcast up --config examples/nearcast.toml` first."""

import asyncio

import nearcast


async def main() -> None:
    async with nearcast.connect("nats://127.0.0.1:4222", name="car7") as client:
        async with client.subscribe("gps.car7") as warnings:
            for kmh in (60, 75, 90, 105, 120):
                receipt = await client.publish("gps.car7", {"kmh": kmh})
                print(f"{kmh} km/h, kept by {', '.join(receipt.stores)}")
            async for warning in warnings:
                print("too fast:", warning.data)
                if warning.data["mean_kmh"] >= 90:
                    break
        async for past in client.history("gps.car7", last=3, publications=True):
            print("past:", past.published, past.data)


if __name__ == "__main__":
    asyncio.run(main())
