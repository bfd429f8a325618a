"""The private folder for the workers' sockets, and the removal of those that killed supervisors left.

A supervisor holds a lock on its folder for life, so a folder that can be locked has no owner any more. A pid in
its name would say less: containers that share a folder number their processes alike.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_PREFIX: Final = "sluicegate-edge-"
# Unix socket paths hold 107 bytes; some TMPDIRs are longer than that.
_MAX_PARENT_LENGTH: Final = 80
# A folder this young may belong to a supervisor that has made it and not locked it yet.
_LEFT_AFTER_S: Final = 60.0


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder that only this user may enter; it goes when the context ends."""
    preferred = Path(tempfile.gettempdir())
    parent = preferred if len(str(preferred)) <= _MAX_PARENT_LENGTH else Path("/tmp")  # noqa: S108 - mkdtemp makes it private
    _remove_leftovers(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_leftovers(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # another user's, or gone by now
            continue
        try:
            status = os.fstat(lock)
            if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _LEFT_AFTER_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # its supervisor lives
            pass
        finally:
            os.close(lock)
