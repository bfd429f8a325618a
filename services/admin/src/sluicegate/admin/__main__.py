"""`sluicegate admin` and `python -m sluicegate.admin`."""

import asyncio
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import uvicorn
import uvloop

from sluicegate.admin.config import AdminSettings
from sluicegate.admin.wiring import Admin, running
from sluicegate.runtime import logs, telemetry
from sluicegate.runtime.health import internal_app, serve_internal
from sluicegate.runtime.settings import load
from sluicegate.runtime.stopping import stop_event

_BACKLOG: Final = 1_024
# A request waits at most a second for the edges.
_GRACE_S: Final = 5

_log = logs.get_logger("sluicegate.admin")


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the process has its own."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def main() -> None:
    """Run the admin API."""
    settings = load(AdminSettings)
    logs.configure("admin", settings.log_level, settings.log_format)
    flush_telemetry = telemetry.configure("admin")
    try:
        uvloop.run(_run(settings))
    except OSError as error:
        sys.stderr.write(f"Cannot listen: {error}\n")
        raise SystemExit(1) from None
    finally:
        flush_telemetry()


async def _run(settings: AdminSettings) -> None:
    stop = stop_event()
    with _listener(settings.host, settings.port) as listener:
        async with (
            running(settings) as admin,
            serve_internal(
                internal_app(admin.health, admin.metrics.registry), settings.internal_host, settings.internal_port
            ),
        ):
            await _serve(admin, listener, stop)


async def _serve(admin: Admin, listener: socket.socket, stop: asyncio.Event) -> None:
    config = uvicorn.Config(
        admin.app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="api-server")
    _log.info("admin API listens", port=listener.getsockname()[1])
    await stop.wait()
    admin.health.set_ready("stopping", ok=False, detail="stopping")
    server.should_exit = True
    await serving


def _listener(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise OSError if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's algorithm off only then: else each answer takes 40 ms more.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


if __name__ == "__main__":
    main()
