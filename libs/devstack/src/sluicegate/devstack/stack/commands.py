"""`sluicegate up` and `sluicegate down`."""

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

_HomeOption = Annotated[
    Path | None, typer.Option("--home", help="Folder for data, logs and stack.json (default: .sluicegate).")
]


def up(
    detach: Annotated[bool, typer.Option("--detach", help="Return when all is ready; `down` stops it.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Wipe the data of earlier runs first.")] = False,
    provider_url: Annotated[
        str | None, typer.Option(help="Point the demo model at this OpenAI-compatible server, not at the fake one.")
    ] = None,
    provider_model: Annotated[str | None, typer.Option(help="The model's name at that server.")] = None,
    edge_workers: Annotated[int, typer.Option(min=1, max=256, help="Edge processes.")] = 1,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start a part that died again, instead of stopping all.")
    ] = False,
    home: _HomeOption = None,
) -> None:
    """Start the whole gateway with its servers and a fake provider; print a key and a curl line."""
    from sluicegate.devstack.stack import front, layout, options  # noqa: PLC0415 - `down` needs none of it

    place = layout.Home((home or layout.default_home()).absolute())
    if running := layout.Lock.holder(place.lock):
        typer.echo(f"A stack runs here already (supervisor {running}, {place.stack_json}); `down` stops it.", err=True)
        raise typer.Exit(1)
    chosen = options.StackOptions(
        home=str(place.path),
        is_fresh=fresh,
        is_tied=not detach,
        is_restarting=restart,
        provider_url=provider_url,
        provider_model=provider_model,
        edge_workers=edge_workers,
    )
    raise typer.Exit(front.run(chosen, place))


def down(home: _HomeOption = None) -> None:
    """Stop the stack that `up` started."""
    from sluicegate.devstack.stack import layout  # noqa: PLC0415

    place = layout.Home((home or layout.default_home()).absolute())
    supervisor = layout.Lock.holder(place.lock)
    if supervisor is None:
        typer.echo("Nothing runs here.")
        return
    os.kill(supervisor, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while layout.Lock.holder(place.lock) == supervisor:
        if time.monotonic() > deadline:
            typer.echo(f"The supervisor (pid {supervisor}) does not stop.", err=True)
            raise typer.Exit(1)
        time.sleep(0.05)
    typer.echo("Stopped.")
