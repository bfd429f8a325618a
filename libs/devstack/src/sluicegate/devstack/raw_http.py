"""An HTTP/1.1 client that sends exactly the bytes it is given, and tells what became of the connection.

For tests only: it parses what a well-behaved server may send, and raises where that is broken.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

DEADLINE_S: Final = 10.0
CHAT_PATH: Final = "/v1/chat/completions"


class Response(NamedTuple):
    """One response. `headers` in their order, with lower-cased names; `body` without its chunk frames."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the value of the only header of that name. ValueError: it stands there more than once."""
        values = [value for header, value in self.headers if header == name]
        if len(values) > 1:
            raise ValueError(f"{name} stands there {len(values)} times")
        return values[0] if values else None

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The error's code; None: no error."""
        return str(self.json["error"]["code"]) if self.status >= 400 and self.body else None

    @property
    def frames(self) -> list[str]:
        """The data of a stream's events, for streams with one LF-ended `data:` line per event."""
        return [frame.removeprefix("data: ") for frame in self.body.decode().split("\n\n") if frame]


def split_head(head: bytes) -> tuple[int, list[tuple[str, str]]]:
    """Return status and headers of a response head, with its blank line."""
    status_line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    version, status, _ = status_line.split(" ", 2)
    if version != "HTTP/1.1":
        raise ValueError(f"not an HTTP/1.1 answer: {status_line}")
    pairs = (line.partition(": ") for line in lines)
    return int(status), [(name.lower(), value) for name, _, value in pairs]


class RawClient:
    """One connection. Every wait has a deadline of ten seconds."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    async def until(self, ending: bytes) -> bytes:
        """Return what arrives up to `ending`, with it."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.readuntil(ending)

    async def read_head(self) -> tuple[int, list[tuple[str, str]]]:
        """Return status and headers of the next response."""
        return split_head(await self.until(b"\r\n\r\n"))

    async def read_chunk(self) -> bytes:
        """Return the next HTTP chunk of a response, b"" for the last one."""
        size = int((await self.until(b"\r\n")).strip(), 16)
        async with asyncio.timeout(DEADLINE_S):
            data = await self.reader.readexactly(size + 2)
        if not data.endswith(b"\r\n"):
            raise ValueError("a chunk without its end")
        return data[:-2]

    async def read_response(self, *, has_body: bool = True) -> Response:
        """Return the next response whole. `has_body`: False for an answer to HEAD."""
        status, headers = await self.read_head()
        names = dict(headers)
        if not has_body or status < 200 or status == 204:
            return Response(status, headers, b"")
        if names.get("transfer-encoding") == "chunked":
            if "content-length" in names:
                raise ValueError("an answer with two framings")
            parts = []
            while part := await self.read_chunk():
                parts.append(part)
            return Response(status, headers, b"".join(parts))
        async with asyncio.timeout(DEADLINE_S):
            if "content-length" in names:
                body = await self.reader.readexactly(int(names["content-length"]))
            elif names.get("connection") == "close":
                body = await self.reader.read()
            else:
                raise ValueError("an answer without an end")
        return Response(status, headers, body)

    async def ask(self, data: bytes, *, has_body: bool = True) -> Response:
        """Send a request and return its response."""
        self.send(data)
        return await self.read_response(has_body=has_body)

    async def is_closed_by_peer(self) -> bool:
        """Wait for the peer's end of the connection. False: more bytes came instead."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        """Close, as a client that goes away does."""
        self.writer.close()

    def reset(self) -> None:
        """Drop the connection at once."""
        self.writer.transport.abort()


@asynccontextmanager
async def connected(port: int, host: str = "127.0.0.1") -> AsyncIterator[RawClient]:
    """A connection for the length of the block."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 26)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


def post(
    content: object,
    *,
    key: str | None = None,
    path: str = CHAT_PATH,
    headers: str = "",
    body: bytes | None = None,
) -> bytes:
    """Return a POST request as bytes; `content` is sent as JSON unless `body` is given."""
    data = json.dumps(content).encode() if body is None else body
    authorization = f"authorization: Bearer {key}\r\n" if key else ""
    head = f"POST {path} HTTP/1.1\r\nhost: edge\r\n{authorization}{headers}content-length: {len(data)}\r\n\r\n"
    return head.encode("latin-1") + data


def chat(fake: str = "", *, key: str, headers: str = "", path: str = CHAT_PATH, **fields: object) -> bytes:
    """Return a chat request as bytes; `fake` are knobs for the fake provider, `fields` go into the body."""
    content = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "fake": fake, **fields}
    return post(content, key=key, headers=headers, path=path)


def get(path: str, *, key: str | None = None, method: str = "GET", headers: str = "") -> bytes:
    """Return a request without a body as bytes."""
    authorization = f"authorization: Bearer {key}\r\n" if key else ""
    return f"{method} {path} HTTP/1.1\r\nhost: edge\r\n{authorization}{headers}\r\n".encode("latin-1")
