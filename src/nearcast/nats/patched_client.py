"""nats-py's client, where it would hang, stop reading or forget a connection.

Each method here says what nats-py does without it. What we add to a connection is in `connection`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.errors import Error as NatsError

from nearcast.nats.tasks import cancel_and_wait, keep_cancellation

if TYPE_CHECKING:
    from nats.aio.msg import Msg

__all__ = ["PatchedClient"]

_log = logging.getLogger(__name__)
_CLOSE_LIMIT = 5.0


class PatchedClient(Client):
    """nats-py's client with the faults we met worked around."""

    @property
    def is_encrypted(self) -> bool:
        """Whether what is sent can be read by the broker only."""
        return bool(self._server_info.get("tls_required"))

    @property
    def server_name(self) -> str:
        """The name of the server at the other end: the site's name for a broker."""
        return str(self._server_info.get("server_name", ""))

    @property
    def server_id(self) -> str:
        """What tells the server at the other end from all others; a new one after a restart."""
        return str(self._server_info.get("server_id", ""))

    async def connect(self, *args: Any, **options: Any) -> None:
        """Connect to the first server that lets us in."""
        with keep_cancellation():
            await super().connect(*args, **options)

    async def close(self) -> None:
        """Close; a server that has gone already is no error."""
        try:
            async with asyncio.timeout(_CLOSE_LIMIT):  # a TLS transport may wait forever for the other side
                await super().close()
        # A TimeoutError is an OSError, too. uvloop: the transport is closed. asyncio: a TLS transport whose connection
        # was lost has no protocol any more, and nats-py writes what is pending.
        except (OSError, RuntimeError, AttributeError) as error:
            _log.debug("nats: %s", error)
        except asyncio.CancelledError:
            # nats-py cancels a reconnection; if that waits for the end of the same transport, so does this no more.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
        # A reconnection under way may outlive nats-py's one cancellation.
        await cancel_and_wait(self._reconnection_task, self._reading_task, self._ping_interval_task, self._flusher_task)
        self._status = Client.CLOSED
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
            if (below := getattr(self._transport, "_bare_io_writer", None)) is not None:
                below.close()  # TLS keeps it open while it waits for the other side

    async def flush(self, timeout: float = 10) -> None:
        """Wait until the broker has all that was sent."""
        with keep_cancellation():
            await super().flush(timeout)  # type: ignore[arg-type]

    async def request(self, *args: Any, **options: Any) -> Msg:
        """Ask, and wait for the answer."""
        with keep_cancellation():
            return await super().request(*args, **options)

    async def _send_ping(self, future: asyncio.Future[None] | None = None) -> None:
        # nats-py writes a ping at once, ahead of what waits to be sent; its answer would confirm nothing.
        if self._pending and self._transport is not None and self.is_connected:
            self._transport.writelines(self._pending)
            self._pending, self._pending_data_size = [], 0
        await super()._send_ping(future)

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        with keep_cancellation():
            return await super()._flush_pending(force_flush)

    async def _attempt_reconnect(self) -> None:
        # A broker that closes each new connection at once cancels one attempt by the next; nats-py then ends the future
        # of both twice, and the task fails after all its work is done.
        with contextlib.suppress(asyncio.InvalidStateError):
            await super()._attempt_reconnect()

    async def _connect_to_server(self, s: Any) -> None:
        if self.is_closed:  # a reconnection that did not hear of it would open the connection again
            raise asyncio.CancelledError
        if self._transport is not None:  # of an attempt that was not answered; nats-py would forget it
            self._transport.close()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)

    def _connect_command(self) -> bytes:
        # Made between the TLS handshake and the broker's verdict: one that refuses us closes the connection.
        writer = getattr(self._transport, "_io_writer", None)
        if self.is_encrypted and writer is not None:
            # nats-py does not tell the stream that it is TLS now, and its end would be warned of.
            writer.transport.get_protocol()._over_ssl = True
            # uvloop makes a TLS record of each chunk, and nats-py gives one per message.
            transport: Any = self._transport
            transport.writelines = lambda chunks: writer.write(b"".join(chunks))
        command: bytes = super()._connect_command()
        return command

    async def _read_loop(self) -> None:
        await super()._read_loop()
        task = asyncio.current_task()
        if self.is_connected and task is not None and not task.cancelling():
            # It stopped over an error. nats-py would keep writing, and never hear anything again.
            await self._process_op_err(NatsError("nats: the reader stopped"))

    async def _process_op_err(self, e: Exception) -> None:
        # nats-py waits until what is unsent has gone; a server that hangs never takes it.
        writer = getattr(self._transport, "_io_writer", None)
        if self.is_connected and writer is not None:
            writer.transport.abort()
        await super()._process_op_err(e)

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():  # whoever flushed gave up; nats-py would stop reading over it
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()
