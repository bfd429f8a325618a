"""`sluicegate edge` and `python -m sluicegate.edge`: the supervisor. Workers are started by it, never by hand."""

import asyncio
import sys
from typing import Annotated

import typer

from sluicegate.edge.config import EdgeSettings
from sluicegate.edge.supervisor.ports import PortTakenError
from sluicegate.edge.supervisor.supervisor import supervise
from sluicegate.runtime import logs
from sluicegate.runtime.settings import load


def main(
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Worker processes, instead of SLUICEGATE_EDGE_WORKERS.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port of the data plane, instead of SLUICEGATE_EDGE_PORT; 0: any."),
    ] = None,
) -> None:
    """Run the edge: the data plane of the gateway."""
    chosen = {"workers": workers, "port": port}
    settings = load(EdgeSettings).model_copy(
        update={name: value for name, value in chosen.items() if value is not None}
    )
    logs.configure("edge", settings.log_level, settings.log_format)
    try:
        status = asyncio.run(supervise(settings))
    except PortTakenError as error:
        sys.stderr.write(f"Cannot start the edge: {error}\n")
        status = 1
    raise SystemExit(status)


if __name__ == "__main__":
    typer.run(main)
