"""The command: lists what is installed, imports only what is called."""

import importlib.metadata
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from sluicegate.cli.application import GROUP, build, commands, summary

MODULE = """
'''A room.'''
import typer
{more}

def main(times: int = 1) -> None:
    '''Pump water.

    More words.
    '''
    print("pumped", times)

group = typer.Typer()

@group.command()
def one() -> None:
    print("one")

@group.command()
def two() -> None:
    print("two")
"""


@pytest.fixture(autouse=True)
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rooms on the path: one that works, one that must not be imported."""
    (tmp_path / "pump_room.py").write_text(MODULE.format(more=""))
    (tmp_path / "heavy_room.py").write_text(MODULE.format(more="raise AssertionError('imported')"))
    monkeypatch.syspath_prepend(str(tmp_path))


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=GROUP)


ENTRIES = [entry("heavy", "heavy_room:main"), entry("pump", "pump_room:main"), entry("valves", "pump_room:group")]


def invoke(*arguments: str, entries: list[EntryPoint] = ENTRIES) -> tuple[int, str]:
    """Run the command and return its status and what it showed."""
    result = CliRunner().invoke(build(arguments, entries), list(arguments))
    return result.exit_code, result.output


def test_command_runs_with_its_options_and_imports_no_other() -> None:
    assert invoke("pump", "--times", "2") == (0, "pumped 2\n")


def test_command_keeps_its_name_when_it_is_the_only_one() -> None:
    assert invoke("pump", entries=[ENTRIES[1]]) == (0, "pumped 1\n")


def test_group_of_commands_runs() -> None:
    assert invoke("valves", "two") == (0, "two\n")


def test_help_names_every_command_without_importing_any() -> None:
    status, shown = invoke("--help")
    assert status == 0
    assert "heavy" in shown
    assert "Pump water." in shown
    assert "More words" not in shown


def test_help_of_a_command_shows_its_options() -> None:
    assert "--times" in invoke("pump", "--help")[1]


def test_unknown_command_is_refused() -> None:
    status, shown = invoke("drain")
    assert status == 2
    assert "drain" in shown


@pytest.mark.parametrize("value", ["no_such_room:main", "no_such.room.__main__:main"])
def test_summary_says_so_when_a_room_is_not_installed(value: str) -> None:
    assert summary(entry("gone", value)) == "(not installed)"


def test_summary_is_the_modules_when_the_object_has_none() -> None:
    assert summary(entry("valves", "pump_room:group")) == "A room."


def test_version_is_shown() -> None:
    assert invoke("--version") == (0, f"sluicegate {importlib.metadata.version('sluicegate-cli')}\n")


def test_registered_commands_load_and_are_callable() -> None:
    for registered in commands():
        loaded = registered.load()
        assert isinstance(loaded, typer.Typer) or callable(loaded)
        assert not isinstance(loaded, ModuleType)
        assert summary(registered)


def test_module_runs_like_the_script() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sluicegate.cli", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Usage" in done.stdout
