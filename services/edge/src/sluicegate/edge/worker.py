"""One edge worker: a uvicorn server with our protocol class, on its own `SO_REUSEPORT` socket.

Started by the supervisor only, which passes what else it must know by its environment. It listens only once
its mirrors are read, so that a worker that takes a dead one's place does not refuse clients meanwhile.
"""

import asyncio
import gc
import signal
import sys
from pathlib import Path
from types import FrameType

import uvicorn
import uvloop

from sluicegate.edge.config import EdgeSettings, WorkerSettings
from sluicegate.edge.inbound.app import EdgeApp
from sluicegate.edge.inbound.protocol import EdgeProtocol
from sluicegate.edge.supervisor.ports import bind_shared
from sluicegate.edge.wiring import EdgeProcess
from sluicegate.edge.worker_port import follow_supervisor, serve_worker_port
from sluicegate.runtime import logs
from sluicegate.runtime.settings import load

_GC_THRESHOLDS = (20_000, 20, 20)


class _Server(uvicorn.Server):
    """uvicorn's server; SIGTERM ends it, and its end is a plain return (uvicorn raises the signal again)."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the parent's signature
        """Stop; a second Ctrl-C stops at once."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


async def serve(settings: EdgeSettings, control_socket: Path) -> None:
    """Serve until told to stop."""
    process = EdgeProcess(settings, lambda: server.server_state.connections)  # type: ignore[arg-type,return-value]  # all connections are EdgeProtocol
    config = uvicorn.Config(
        EdgeApp(process.start, process.stop),
        http=EdgeProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(settings.shutdown_timeout_s) or 1,
    )
    server = _Server(config)
    bound = bind_shared(settings.host, settings.port)
    async with serve_worker_port(control_socket, process.metrics, process.readiness, process.drain):
        await server.serve(sockets=[bound])


def main() -> None:
    """Run one worker to its end."""
    settings = load(WorkerSettings)
    if settings.control_socket is None or settings.supervisor_pid is None:
        sys.stderr.write("Edge workers are started by their supervisor: run `sluicegate edge`.\n")
        raise SystemExit(2)
    follow_supervisor(settings.supervisor_pid)
    logs.configure("edge", settings.log_level, settings.log_format)
    uvloop.install()
    # Requests leave next to nothing for the collector: no circles. So it comes seldom, and skips what stays for good.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    asyncio.run(serve(settings, settings.control_socket))


if __name__ == "__main__":
    main()
