"""A directory per process life: owned by the holder of its lock, and by nobody else."""

import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from sluicegate.edge.journal.life import Life, foreign_lives


def new_inc() -> str:
    return str(uuid.uuid4())


def test_life_cannot_be_taken_while_its_owner_lives(tmp_path: Path) -> None:
    own = Life.create(tmp_path, new_inc())
    assert Life.take(own.path) is None
    own.release()
    taken = Life.take(own.path)
    assert taken is not None
    assert Life.take(own.path) is None
    taken.release()


def test_lock_is_not_inherited_by_a_started_program(tmp_path: Path) -> None:
    own = Life.create(tmp_path, new_inc())
    child = subprocess.Popen(
        [sys.executable, "-c", "print(); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
    )
    assert child.stdout is not None
    child.stdout.readline()  # it runs, so its exec is over
    own.release()
    taken = Life.take(own.path)
    child.communicate(b"\n")
    assert taken is not None
    taken.release()


def test_removed_life_cannot_be_taken(tmp_path: Path) -> None:
    own = Life.create(tmp_path, new_inc())
    own.log_path(1).write_bytes(b"x")
    own.remove()
    assert not own.path.exists()
    assert Life.take(own.path) is None
    assert list(tmp_path.iterdir()) == []


def test_lock_of_a_removed_directory_is_worth_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the lock file and locking it the adopter before us may have removed it."""
    import fcntl

    own = Life.create(tmp_path, new_inc())
    real_flock = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        own.remove()
        real_flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert Life.take(own.path) is None


def test_second_life_of_the_same_name_is_refused(tmp_path: Path) -> None:
    own = Life.create(tmp_path, new_inc())
    with pytest.raises(FileExistsError):
        Life.create(tmp_path, own.inc)
    own.release()


def test_life_must_have_a_name_that_adopters_look_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a uuid"):
        Life.create(tmp_path, "worker-1")
    assert list(tmp_path.iterdir()) == []


def test_creating_survives_adopters_that_remove_empty_directories(tmp_path: Path) -> None:
    is_over = threading.Event()
    faults: list[BaseException] = []

    def adopt() -> None:
        try:
            while not is_over.is_set():
                for path in foreign_lives(tmp_path, ""):
                    life = Life.take(path)
                    if life is not None:
                        life.remove()
        except BaseException as error:  # noqa: BLE001
            faults.append(error)

    adopters = [threading.Thread(target=adopt) for _ in range(2)]
    for adopter in adopters:
        adopter.start()
    for _ in range(300):
        life = Life.create(tmp_path, new_inc())
        life.log_path(1).write_bytes(b"mine")
        assert life.log_path(1).read_bytes() == b"mine"
        life.remove()
    is_over.set()
    for adopter in adopters:
        adopter.join()
    assert faults == []


def test_foreign_lives_are_those_named_by_a_uuid_but_our_own(tmp_path: Path) -> None:
    own, other = new_inc(), new_inc()
    for name in (own, other, "aside", "lost+found", other.upper()):
        (tmp_path / name).mkdir(exist_ok=True)
    assert foreign_lives(tmp_path, own) == [tmp_path / other]
    assert foreign_lives(tmp_path / "missing", own) == []


def test_logs_come_in_numeric_order(tmp_path: Path) -> None:
    life = Life.create(tmp_path, new_inc())
    for number in (10, 9, 1, 100):
        life.log_path(number).touch()
    (life.path / "notes.txt").touch()
    assert [number for number, _ in life.logs()] == [1, 9, 10, 100]
    life.release()


def test_file_set_aside_outlives_its_directory(tmp_path: Path) -> None:
    life = Life.create(tmp_path, new_inc())
    life.log_path(1).write_bytes(b"damaged")
    kept = life.set_aside(life.log_path(1))
    life.remove()
    assert kept.read_bytes() == b"damaged"
    assert kept == tmp_path / "aside" / f"{life.inc}-1.log"
    assert foreign_lives(tmp_path, "") == []
