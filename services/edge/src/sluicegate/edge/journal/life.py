"""One directory per process life, `<root>/<inc>/`, owned by whoever holds the flock on its `lock`.

A lock ends with its process, whatever ended that, and survives SIGSTOP: so a free lock means that the
owner is dead. Directories are made and removed under each other's eyes; hence, after each flock, the
check that the path still names the inode that was locked.

A lock belongs to the open file description: a child made by fork without exec would inherit it and
keep the directory owned. Nothing in an edge process forks without exec.
"""

import contextlib
import fcntl
import os
import uuid
from pathlib import Path
from typing import Final, Self

_LOCK_NAME: Final = "lock"
_LOG_SUFFIX: Final = ".log"
ASIDE_NAME: Final = "aside"


class Life:
    """A locked directory: ours, or one adopted from a dead process."""

    __slots__ = ("_lock_fd", "inc", "path")

    def __init__(self, path: Path, lock_fd: int) -> None:
        """Use `create` or `take`."""
        self.path = path
        self.inc = path.name
        self._lock_fd = lock_fd

    @classmethod
    def create(cls, root: Path, inc: str) -> Self:
        """Make and lock `<root>/<inc>`. Raises `OSError`, and `FileExistsError` if it is taken.

        `inc` is a uuid in its usual form: directories with other names are never adopted.
        """
        if not _is_inc(inc):
            raise ValueError(f"not a uuid: {inc}")
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = root / inc
        path.mkdir(mode=0o700)
        while True:
            # An adopter may come between mkdir and flock, find nothing in it, and remove it.
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            with contextlib.suppress(FileNotFoundError):
                lock_fd = _lock(path)
                if lock_fd is not None:
                    return cls(path, lock_fd)

    @classmethod
    def take(cls, path: Path) -> Self | None:
        """Lock a foreign directory; None while its process lives, or when it has gone."""
        try:
            lock_fd = _lock(path)
        except FileNotFoundError:
            return None
        return None if lock_fd is None else cls(path, lock_fd)

    def log_path(self, number: int) -> Path:
        """Return the path of the file `<number>.log`."""
        return self.path / f"{number}{_LOG_SUFFIX}"

    def logs(self) -> list[tuple[int, Path]]:
        """Return the files there are, oldest first."""
        found = [
            (int(path.stem), path)
            for path in self.path.iterdir()
            if path.suffix == _LOG_SUFFIX and path.stem.isdecimal()
        ]
        return sorted(found)

    def set_aside(self, log: Path) -> Path:
        """Move a damaged file to where nothing reads or removes it, and return its new path."""
        aside = self.path.parent / ASIDE_NAME
        aside.mkdir(mode=0o700, exist_ok=True)
        return log.rename(aside / f"{self.inc}-{log.name}")

    def remove(self) -> None:
        """Remove the directory and give up the lock. The lock file goes last: without it others would take over."""
        try:
            for _, log in self.logs():
                log.unlink()
            (self.path / _LOCK_NAME).unlink(missing_ok=True)
            # Somebody may have made a new lock file in between: then they remove it.
            with contextlib.suppress(OSError):
                self.path.rmdir()
        finally:
            self.release()

    def release(self) -> None:
        """Give up the lock and leave the directory to others."""
        if self._lock_fd >= 0:
            lock_fd, self._lock_fd = self._lock_fd, -1
            os.close(lock_fd)


def foreign_lives(root: Path, own_inc: str) -> list[Path]:
    """Return the directories of other process lives, dead or alive."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(path for path in root.iterdir() if path.name != own_inc and _is_inc(path.name))
    return []


def _is_inc(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


def _lock(path: Path) -> int | None:
    """Return the locked descriptor, or None if somebody else has it. FileNotFoundError: the directory has gone."""
    lock_path = path / _LOCK_NAME
    lock_fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock_fd), lock_path.stat()):
            return lock_fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock_fd)
        raise
    os.close(lock_fd)
    return None
