"""The `sluicegate` command. It knows no room: each registers its commands as entry points.

A room's pyproject.toml says, for example,

    [project.entry-points."sluicegate.commands"]
    edge = "sluicegate.edge.__main__:main"

The object is a function with typer's annotations, or a `typer.Typer`. Only the command that is called
is imported: FastAPI and FastStream cost seconds, and the edge must not pay for them.
"""

import ast
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Final

import typer

GROUP: Final = "sluicegate.commands"


def commands() -> list[EntryPoint]:
    """Return what the installed rooms register, by name."""
    return sorted(importlib.metadata.entry_points(group=GROUP), key=lambda entry: entry.name)


def summary(entry: EntryPoint) -> str:
    """Return the first line of a command's docstring, read from its source without importing it."""
    module, _, attribute = entry.value.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        return "(not installed)"
    tree = ast.parse(Path(spec.origin).read_bytes())
    found: ast.Module | ast.FunctionDef = tree
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            found = node
    return (ast.get_docstring(found) or "").partition("\n")[0]


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"sluicegate {importlib.metadata.version('sluicegate-cli')}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Sluicegate, a self-hosted LLM gateway. Each command runs one part; settings come from the environment."""


def _named_only() -> None:
    raise AssertionError("a command that was not chosen was called")


def build(arguments: Sequence[str], entries: Iterable[EntryPoint]) -> typer.Typer:
    """Return the application for these arguments: the chosen command is loaded, the others are named."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(_root)  # without a callback, typer drops the name of an only command
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    for entry in entries:
        if entry.name != chosen:
            app.command(entry.name, help=summary(entry))(_named_only)
            continue
        target = entry.load()
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=entry.name)
        else:
            app.command(entry.name)(target)
    return app


def main() -> None:
    """Run the command that the arguments name."""
    build(sys.argv[1:], commands())()
