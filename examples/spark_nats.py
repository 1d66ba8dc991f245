"""The `nats` data source on its own, without the rest of Nearcast: a plain PySpark script.

    nats-server -js &
    python examples/spark_nats.py nats://127.0.0.1:4222

It makes a stream, publishes readings to it, counts them with a batch query, follows it with a streaming query that
publishes an alarm for each high reading, and counts the alarms: each is there once, although the query ran twice.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, concat_ws, lit, to_json

import nats
from nearcast.cluster.nats_source.source import NatsSource

SCHEMA = "sensor STRING NOT NULL, value DOUBLE"


async def fill(url: str) -> None:
    """1,000 readings, of which every hundredth is broken."""
    connection = await nats.connect(url)
    stream = connection.jetstream()
    for name in ("readings", "alarms"):
        await stream.add_stream(name=name, subjects=[name], allow_direct=True)
    for n in range(1000):
        reading = json.dumps({"sensor": f"s{n % 10}", "value": n % 97}).encode()
        await stream.publish("readings", b"broken" if n % 100 == 99 else reading)
    await connection.close()


def main(url: str) -> None:
    asyncio.run(fill(url))
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.dataSource.register(NatsSource)

    def readings(reader: Any) -> Any:
        return reader.format("nats").option("servers", url).option("stream", "readings").option("valueSchema", SCHEMA)

    batch = readings(spark.read).load()
    print("readings:", batch.where("error IS NULL").count(), "broken:", batch.where("error IS NOT NULL").count())

    with tempfile.TemporaryDirectory() as folder:
        for attempt in ("first", "second"):
            # A new checkpoint each time: the whole stream is read again, and the ids keep the alarms single.
            high = readings(spark.readStream).load().where("value.value > 90")
            alarms = high.select(
                lit("alarms").alias("subject"),
                concat_ws(":", lit("alarm"), col("stream"), col("sequence")).alias("id"),
                to_json("value").alias("payload"),
            )
            query = alarms.writeStream.format("nats").option("servers", url)
            query = query.option("checkpointLocation", f"{folder}/{attempt}").trigger(availableNow=True).start()
            query.awaitTermination()
            count = spark.read.format("nats").option("servers", url).option("stream", "alarms").load().count()
            print(f"alarms after the {attempt} run:", count)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222")
