"""`sluicegate up` and `sluicegate down`."""

import os
import signal
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from sluicegate.devstack.stack.layout import Home, HomeError, Lock, default_home
from sluicegate.devstack.stack.options import StackOptions, checked_provider_url

_STOP_DEADLINE_S = 60.0
_HomeOption = Annotated[
    Path | None,
    typer.Option("--home", readable=False, help="Folder for data, logs and stack.json (default: .sluicegate)."),
]


def _provider_url(text: str | None) -> str | None:
    """Refuse what is no address before anything starts."""
    try:
        return None if text is None else checked_provider_url(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}.") from error


def up(
    detach: Annotated[bool, typer.Option("--detach", help="Return when all is ready; `down` stops it.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Wipe the data of earlier runs first.")] = False,
    provider_url: Annotated[
        str | None,
        typer.Option(
            callback=_provider_url, help="Point the demo model at this OpenAI-compatible server, not at the fake one."
        ),
    ] = None,
    provider_model: Annotated[str | None, typer.Option(help="The model's name at that server.")] = None,
    edge_workers: Annotated[int, typer.Option(min=1, max=256, help="Edge processes.")] = 1,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start a part that died again, instead of stopping all.")
    ] = False,
    home: _HomeOption = None,
) -> None:
    """Start the whole gateway with its servers and a fake provider; print a key and a curl line."""
    from sluicegate.devstack.stack import front  # noqa: PLC0415 - `down` needs none of it

    place = _place(home)
    if running := _holder(place):
        _fail(f"A stack runs here already (supervisor {running}, {place.stack_json}); `down` stops it.")
    chosen = StackOptions(
        home=str(place.path),
        is_fresh=fresh,
        is_tied=not detach,
        is_restarting=restart,
        provider_url=provider_url,
        provider_model=provider_model,
        edge_workers=edge_workers,
    )
    try:
        status = front.run(chosen, place)
    except HomeError as error:
        _fail(str(error))
    raise typer.Exit(status)


def down(home: _HomeOption = None) -> None:
    """Stop the stack that `up` started."""
    place = _place(home)
    supervisor = _holder(place)
    if supervisor is None:
        typer.echo("Nothing runs here.")
        if place.end.exists():
            typer.echo(f"The last stack ended by itself: {place.end.read_text().strip()}")
        return
    os.kill(supervisor, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_DEADLINE_S
    while _holder(place) == supervisor:
        if time.monotonic() > deadline:
            _fail(f"The supervisor (pid {supervisor}) does not stop.")
        time.sleep(0.05)
    typer.echo("Stopped.")


def _place(home: Path | None) -> Home:
    return Home((home or default_home()).absolute())


def _holder(place: Home) -> int | None:
    try:
        return Lock.holder(place.lock)
    except HomeError as error:
        _fail(str(error))


def _fail(text: str) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(1)
