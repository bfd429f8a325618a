"""Clients that call a gateway all at once or at a pace, and keep what it answered."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from sluicegate.devstack.raw_http import split_head

_TIMEOUT_S: Final = 30.0
_SPIN_S: Final = 0.001


class Answer:
    """One call's answer; status 0: the connection ended first. Times are monotonic seconds."""

    __slots__ = ("body", "ended_s", "headers", "sent_s", "status")

    def __init__(self, sent_s: float, status: int, headers: dict[str, str], body: bytes) -> None:
        self.sent_s = sent_s
        self.ended_s = time.monotonic()
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def is_served(self) -> bool:
        return self.status == 200

    @property
    def code(self) -> str:
        """The error's code; "" for an answer, "broken" for a connection that ended."""
        if self.is_served:
            return ""
        return str(json.loads(self.body)["error"]["code"]) if self.status else "broken"

    @property
    def is_final(self) -> bool:
        """Whether it says that asking again is no use."""
        return self.headers.get("x-should-retry") == "false"

    @property
    def took_s(self) -> float:
        return self.ended_s - self.sent_s


def chat(model: str, *, max_tokens: int | None = None, fake: str = "", is_streamed: bool = False) -> bytes:
    """Return the body of a chat request; `fake` sets the fake provider's knobs."""
    content: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "How?"}]}
    if max_tokens is not None:
        content["max_tokens"] = max_tokens
    if is_streamed:
        content["stream"] = True
    if fake:
        content["fake"] = fake
    return json.dumps(content).encode()


class Caller:
    """Calls one gateway. Each call has a connection of its own, or they share `kept` ones, taken in turn.

    The kernel gives connections to workers by a hash of their ports: only many of them meet every worker.
    """

    def __init__(self, url: str, *, kept: int = 0) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._kept = kept
        self._idle: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()

    async def call(self, key: str, body: bytes, *, leaves_after_s: float | None = None) -> Answer:
        """Call, and wait for the answer's end; or leave without a word after a while, with status 0."""
        sent_s = time.monotonic()
        try:
            async with asyncio.timeout(leaves_after_s or _TIMEOUT_S):
                return await self._call(key, body, sent_s)
        except (OSError, EOFError, TimeoutError):
            return Answer(sent_s, 0, {}, b"")

    async def _call(self, key: str, body: bytes, sent_s: float) -> Answer:
        reader, writer = self._idle.popleft() if self._idle else await self._open()
        is_reusable = False
        try:
            writer.write(self._head(key, body) + body)
            status, pairs = split_head(await reader.readuntil(b"\r\n\r\n"))
            headers = dict(pairs)
            length = headers.get("content-length")
            if length is not None:
                content = await reader.readexactly(int(length))
            elif not self._kept:
                content = await reader.read()
            else:
                raise ValueError("a kept connection is only for answers of known length")
            is_reusable = bool(self._kept)
            return Answer(sent_s, status, headers, content)
        finally:
            if is_reusable:
                self._idle.append((reader, writer))
            else:
                writer.transport.abort()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port)

    async def open_kept(self) -> None:
        """Open the kept connections ahead."""
        self._idle.extend(await asyncio.gather(*(self._open() for _ in range(self._kept))))

    def _head(self, key: str, body: bytes) -> bytes:
        connection = "" if self._kept else "connection: close\r\n"
        return (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\n{connection}content-length: {len(body)}\r\n\r\n"
        ).encode()

    async def close(self) -> None:
        """Close the kept connections."""
        for _, writer in self._idle:
            with suppress(OSError):
                writer.close()
        self._idle.clear()


async def at_once(count: int, call: Callable[[], Awaitable[Answer]]) -> list[Answer]:
    """Make `count` calls at the same time."""
    return list(await asyncio.gather(*(call() for _ in range(count))))


async def at_pace(rate_per_s: float, calls: Iterable[Callable[[], Awaitable[Answer]]]) -> list[Answer]:
    """Start the calls at a steady pace, however long their answers take."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    tasks: list[asyncio.Task[Answer]] = []
    for number, call in enumerate(calls):
        wait_s = started + number / rate_per_s - loop.time()
        if wait_s > _SPIN_S:
            await asyncio.sleep(wait_s)
        tasks.append(asyncio.ensure_future(call()))
    return list(await asyncio.gather(*tasks))


async def patiently(call: Callable[[], Awaitable[Answer]], *, most: int) -> list[Answer]:
    """Call again and again as a well-behaved client: after a refusal when it says, never after a final one."""
    answers: list[Answer] = []
    while sum(answer.is_served for answer in answers) < most:
        answer = await call()
        answers.append(answer)
        if answer.is_final:
            break
        if not answer.is_served:
            await asyncio.sleep(float(answer.headers.get("retry-after", "1")))
    return answers


def served(answers: Sequence[Answer]) -> int:
    """Return how many calls were answered."""
    return sum(answer.is_served for answer in answers)


def codes(answers: Iterable[Answer]) -> set[str]:
    """Return the codes of all refusals."""
    return {answer.code for answer in answers} - {""}
