"""A receiver of webhooks for tests: keeps what came, answers as told, and checks signatures as its owner would."""

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from sluicegate.devstack.servers.ports import LOOPBACK
from sluicegate.devstack.waiting import until


@dataclass(frozen=True)
class Webhook:
    """One request, header names in lower case."""

    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """What the body says."""
        return json.loads(self.body)

    def is_signed_with(self, secret: str) -> bool:
        """Tell whether both headers hold a signature by this secret; written down from the documentation alone."""
        stamp = self.headers["webhook-timestamp"]
        standard = self.headers["webhook-id"].encode() + b"." + stamp.encode() + b"." + self.body
        by_key = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), standard, hashlib.sha256).digest()
        by_text = hmac.new(secret.encode(), stamp.encode() + b"." + self.body, hashlib.sha256).hexdigest()
        return (
            f"v1,{base64.b64encode(by_key).decode()}" in self.headers["webhook-signature"].split(" ")
            and f"v1={by_text}" in self.headers["x-sluicegate-signature"].split(",")
            and f"t={stamp}" in self.headers["x-sluicegate-signature"].split(",")
        )


Respond = Callable[[Webhook, asyncio.StreamWriter], Awaitable[None]]


def answer(status: int, *, headers: str = "", body: bytes = b"") -> Respond:
    """Return what answers every webhook with this status; `headers` are whole lines."""

    async def respond(_webhook: Webhook, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\n{headers}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)

    return respond


class WebhookReceiver:
    """An HTTP server on a free port of loopback while its context is open. `respond` may be set at any time."""

    def __init__(self, respond: Respond | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self.respond = respond or answer(204)
        self.received: list[Webhook] = []
        self.open_count = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Where to send webhooks."""
        return f"http{'s' if self._tls else ''}://{LOOPBACK}:{self.port}/hook"

    async def until_received(self, count: int, *, deadline_s: float = 60) -> list[Webhook]:
        """Wait for so many webhooks; return all."""
        await until(lambda: len(self.received) >= count, f"{count} webhooks", deadline_s=deadline_s)
        return self.received

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_count += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")[:-2]
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            webhook = Webhook(first.split(" ")[1], headers, body)
            self.received.append(webhook)
            await self.respond(webhook, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the sender went away, which a test may want it to
        finally:
            self.open_count -= 1
            writer.close()
