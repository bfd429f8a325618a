"""Liveness, readiness and metrics of a process, on a port of its own that no client reaches.

Live means that the loop answers; it never depends on a neighbour. Ready means that every named part
is: parts report themselves by `set_ready`, nothing is probed when the question comes.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope

_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"
_BACKLOG: Final = 128

MetricsText = Callable[[], Awaitable[bytes]]


class ProbeState(NamedTuple):
    """What a part last said of itself."""

    is_ready: bool
    detail: str


class Health:
    """The readiness of a process: ready when all its parts are."""

    def __init__(self, *parts: str) -> None:
        """Begin with `parts` not ready yet."""
        self._states = dict.fromkeys(parts, ProbeState(is_ready=False, detail="starting"))

    def set_ready(self, name: str, ok: bool, detail: str = "") -> None:
        """Set what a part says of itself; an unknown part is added."""
        self._states[name] = ProbeState(is_ready=ok, detail=detail)

    def forget(self, name: str) -> None:
        """Take a part out, so that it no longer counts."""
        self._states.pop(name, None)

    @property
    def is_ready(self) -> bool:
        """Whether every part is ready."""
        return all(state.is_ready for state in self._states.values())

    def report(self) -> dict[str, Any]:
        """Return what `/readyz` shows."""
        parts = {name: {"ready": state.is_ready, "detail": state.detail} for name, state in self._states.items()}
        return {"ready": self.is_ready, "parts": parts}


def internal_app(health: Health, metrics: CollectorRegistry | MetricsText) -> ASGI3Application:
    """Return an ASGI app with /livez, /readyz and /metrics.

    `metrics` is a registry, rendered in a thread because many series take 100 ms and more, or a
    coroutine function that returns the text itself.
    """

    async def answer(path: str) -> tuple[int, str, bytes]:
        if path == "/livez":
            return 200, _TEXT, b"ok\n"
        if path == "/readyz":
            return (200 if health.is_ready else 503), _JSON, json.dumps(health.report()).encode()
        if path == "/metrics":
            text = (
                await asyncio.to_thread(generate_latest, metrics)
                if isinstance(metrics, CollectorRegistry)
                else await metrics()
            )
            return 200, CONTENT_TYPE_PLAIN_0_0_4, text
        return 404, _TEXT, b"not found\n"

    async def app(scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            return
        status, content_type, body = (
            await answer(scope["path"]) if scope["method"] in {"GET", "HEAD"} else (405, _TEXT, b"method not allowed\n")
        )
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return app


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the process has its own."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def serve_internal(app: ASGI3Application, host: str, port: int) -> AsyncIterator[int]:
    """Serve `app` on (host, port) while the context is open; yield the port (useful with 0).

    Raises OSError if the port is taken. It listens before it yields.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off: else answers on a kept connection wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="internal-server")
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving
        listener.close()
