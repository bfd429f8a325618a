"""A server's connection without a socket: bytes reach the protocol in exactly the pieces they are sent in.

`asyncio.StreamReader` and `RawClient` read its other end, so a test of raw bytes runs over both.
"""

import asyncio
from typing import Any, cast

from sluicegate.devstack.raw_http import RawClient


class MemoryTransport(asyncio.Transport):
    """The server's side: what the protocol writes is read from `reader`."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": ("192.0.2.7", 40_000), "sockname": ("192.0.2.1", 8080)})
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._is_closing = False
        self.reader = asyncio.StreamReader()
        protocol.connection_made(self)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.reader.feed_eof()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        if self._is_closing:
            raise RuntimeError("written after the close")
        self.reader.feed_data(bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.reader.feed_eof()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:  # noqa: ARG002 - the name is asyncio's
        raise RuntimeError("nobody takes the connection over")

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol


class _Sender:
    """What a `RawClient` needs of its writer."""

    def __init__(self, protocol: asyncio.Protocol, transport: MemoryTransport) -> None:
        self._protocol = protocol
        self.transport = transport

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self._protocol.data_received(data)

    def close(self) -> None:
        if not self.transport.is_closing():
            self._protocol.eof_received()
            self.transport.abort()


def memory_client(protocol: asyncio.Protocol) -> RawClient:
    """Connect a raw client to a server's protocol; each `send` is one `data_received`."""
    transport = MemoryTransport(protocol)
    return RawClient(transport.reader, cast(asyncio.StreamWriter, _Sender(protocol, transport)))
