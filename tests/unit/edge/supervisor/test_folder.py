"""The supervisor's private folder."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate.edge.supervisor.folder import private_folder


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short temporary folder of the test's own, since long ones are not used."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def _age(folder: Path) -> None:
    os.utime(folder, (0, 0))


def test_folder_is_private_and_goes_with_its_context(parent: Path) -> None:
    with private_folder() as folder:
        assert folder.parent == parent
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "0-1.sock").touch()
    assert list(parent.iterdir()) == []


def test_leftover_is_removed_when_its_supervisor_is_gone(parent: Path) -> None:
    left = parent / "sluicegate-edge-left"
    left.mkdir()
    (left / "0-1.sock").touch()
    _age(left)
    with private_folder() as folder:
        assert list(parent.iterdir()) == [folder]


def test_folder_stays_when_its_supervisor_lives_or_it_is_new_or_it_is_no_folder_of_ours(parent: Path) -> None:
    new = parent / "sluicegate-edge-new"
    new.mkdir()
    other = parent / "other"
    other.mkdir()
    _age(other)
    link = parent / "sluicegate-edge-link"
    link.symlink_to(other)
    with private_folder() as alive:
        _age(alive)
        with private_folder() as second:
            assert set(parent.iterdir()) == {new, other, link, alive, second}


def test_folder_is_short_enough_for_a_socket_when_the_temporary_folder_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with private_folder() as folder:
        assert len(str(folder)) < 60
