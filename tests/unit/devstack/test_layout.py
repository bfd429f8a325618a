"""The stack's folder, its lock and its secrets."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.devstack.stack.layout import Home, HomeError, Lock, Secrets


def test_home_ignores_itself_for_git_when_created(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    assert (home.path / ".gitignore").read_text() == "*\n"
    assert stat.S_IMODE(home.logs.stat().st_mode) == 0o700
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o711


def test_home_says_what_is_wrong_when_it_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HomeError, match=r"file/home cannot be written to: Not a directory"):
        Home(tmp_path / "file" / "home").create()


def test_wipe_leaves_lock_and_logs_only_when_all_else_goes(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    lock = Lock(home.lock)
    assert lock.acquire()
    Secrets(home.secrets).get_or_make("x")
    (home.data / "nats").mkdir()
    home.wipe()
    lock.release()
    assert sorted(entry.name for entry in home.path.iterdir()) == ["lock", "logs"]


def test_lock_names_its_holder_when_another_process_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    hold = (
        "import sys, pathlib; from sluicegate.devstack.stack.layout import Lock\n"
        "lock = Lock(pathlib.Path(sys.argv[1])); print(lock.acquire(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "True\n"
        assert Lock.holder(path) == holder.pid
        assert Lock(path).acquire() is False
        holder.kill()
        holder.wait()
        assert Lock.holder(path) is None
        lock = Lock(path)
        assert lock.acquire() is True
        lock.release()


def test_holder_is_nobody_when_there_is_no_lock(tmp_path: Path) -> None:
    assert Lock.holder(tmp_path / "none") is None


def test_secrets_stay_and_are_private_when_read_again(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    made = Secrets(path).get_or_make("token")
    again = Secrets(path)
    assert again.get_or_make("token") == made
    assert again.get("other") is None
    assert len(made) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_logs_of_the_last_run_are_kept_when_rotated(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    home.log_of("edge").write_text("old")
    home.rotate_logs()
    assert not home.log_of("edge").exists()
    assert (home.logs / "edge.log.1").read_text() == "old"
