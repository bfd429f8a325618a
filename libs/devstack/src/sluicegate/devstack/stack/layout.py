"""What lies where below `.sluicegate/`, and the secrets that belong to its data."""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluicegate.devstack.servers.embedded import write_secret

HOME_VARIABLE = "SLUICEGATE_HOME"
DEFAULT_HOME = ".sluicegate"
_NO_SECRETS = "Put it back, or begin anew with --fresh."


def default_home() -> Path:
    """`.sluicegate` in the working directory, or what SLUICEGATE_HOME says."""
    return Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME)


class HomeError(RuntimeError):
    """The folder cannot be used."""


@dataclass(frozen=True)
class Home:
    """The stack's folder. Git ignores it, and so it says itself."""

    path: Path

    @property
    def stack_json(self) -> Path:
        return self.path / "stack.json"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def end(self) -> Path:
        """Why the last stack ended, if nobody had asked it to."""
        return self.logs / "end.log"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def secrets(self) -> Path:
        return self.path / "secrets.json"

    @property
    def processes(self) -> Path:
        return self.path / "processes.json"

    def create(self) -> None:
        """Make the folders. Others may pass through them as root's `nobody` must, but list nothing.

        Raises HomeError for a folder that holds anything else: `--fresh` would wipe it.
        """
        try:
            if self.path.exists() and not self.lock.exists() and any(self.path.iterdir()):
                raise HomeError(f"{self.path} is not a stack's folder and not empty")
            for folder in (self.path, self.data):
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o711)
            self.logs.mkdir(exist_ok=True, mode=0o700)
            (self.path / ".gitignore").write_text("*\n")
            self.lock.touch()
        except OSError as error:
            if self.path.exists() and self.path.stat().st_uid != os.geteuid():
                raise HomeError(f"{error.filename} belongs to another user: remove {self.path} as its owner") from error
            raise HomeError(f"{self.path} cannot be written to: {error.strerror}") from error

    def check_secrets(self) -> None:
        """Raise HomeError when there is data whose passwords are lost."""
        if not self.secrets.exists() and any(self.data.iterdir()):
            raise HomeError(f"{self.secrets} is gone, and without it {self.data} cannot be read. {_NO_SECRETS}")

    def wipe(self) -> None:
        """Delete everything but the logs and the lock, which the caller holds."""
        for entry in self.path.iterdir():
            if entry in {self.lock, self.logs}:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def log_of(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def rotate_logs(self) -> None:
        """Keep the logs of the last run beside the new ones."""
        for log in self.logs.glob("*.log"):
            log.replace(log.with_suffix(".log.1"))


class Lock:
    """Held by the supervisor for life; its text is the holder's pid."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a+")

    def acquire(self) -> bool:
        """Take it and write our pid down; False if another stack holds it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            return False
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()
        return True

    def release(self) -> None:
        self._file.close()

    @staticmethod
    def holder(path: Path) -> int | None:
        """The pid of the running supervisor, or None."""
        try:
            with path.open("r+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(file.read().strip() or 0) or None
        except FileNotFoundError:
            pass
        except PermissionError as error:
            raise HomeError(f"{path.parent} belongs to another user") from error
        return None


def _read_secrets(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise HomeError(f"{path} cannot be read any more, and without it neither can the data. {_NO_SECRETS}")
    return values


class Secrets:
    """Generated values that must stay the same as long as the data does: passwords, token, key ring, demo key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, Any] = _read_secrets(path) if path.exists() else {}

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def get_or_make(self, name: str, make: Callable[[], str] = lambda: secrets.token_urlsafe(32)) -> str:
        if name not in self._values:
            self.put(name, make())
        return str(self._values[name])

    def put(self, name: str, value: str) -> None:
        self._values[name] = value
        write_secret(self._path, json.dumps(self._values, indent=2) + "\n")
