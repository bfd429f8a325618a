"""One child process that cannot outlive its parent: spawn, watch, signal with all its descendants.

Two rules keep a killed parent from leaving anything behind (Linux). The child asks the kernel for a signal at the
parent's death, and the kernel means the *thread* that forked: so only the main thread may spawn. A session of its
own keeps Ctrl-C away from the child, so that the parent decides the order of stopping.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Signals

import psutil

_PR_SET_PDEATHSIG = 1
_prctl: Callable[..., int] | None = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@dataclass(frozen=True)
class Identity:
    """The user a child runs as. Needs root."""

    uid: int
    gid: int


class ChildProcess:
    """A running child and the log file its output goes to."""

    def __init__(self, popen: subprocess.Popen[bytes], log_path: Path) -> None:
        self._popen = popen
        self.log_path = log_path
        self.pid = popen.pid

    def exit_status(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._popen.poll()

    def death(self) -> str:
        """How it ended, in words."""
        status = self.exit_status()
        if status is None:
            return "is running"
        return f"ended with status {status}" if status >= 0 else f"was ended by {Signals(-status).name}"

    @property
    def is_running(self) -> bool:
        return self.exit_status() is None

    def family(self) -> list[psutil.Process]:
        """The process and all its descendants, children first. Empty when it is gone."""
        try:
            root = psutil.Process(self.pid)
            return [*reversed(root.children(recursive=True)), root]
        except psutil.Error:
            return []

    def signal(self, number: Signals) -> None:
        """Signal the process itself."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self._popen.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP to the whole family; returns when all of it stands still."""
        self.signal_family(SIGSTOP)
        await_stopped(self.family())

    def signal_family(self, number: Signals) -> None:
        """Signal the process and every descendant, also those in sessions of their own."""
        for member in self.family():
            with contextlib.suppress(psutil.Error):
                member.send_signal(number)

    def stop(self, number: Signals, *, deadline_s: float) -> int | None:
        """Ask it to end, and kill it and all descendants when it has not by the deadline."""
        family = self.family()
        self.signal(SIGCONT)
        self.signal(number)
        if self.wait(deadline_s=deadline_s) is None:
            self.signal_family(SIGKILL)
            self._popen.wait()
        _end_all(family)
        return self._popen.returncode

    def wait(self, *, deadline_s: float) -> int | None:
        """Its exit status, or None if it still runs at the deadline."""
        try:
            return self._popen.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """SIGKILL to the whole family, and wait until all of it is gone."""
        family = self.family()
        self.signal_family(SIGKILL)
        self._popen.wait()
        _end_all(family)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines it wrote."""
        return tail(self.log_path, lines)


def spawn(
    argv: Sequence[str | Path],
    *,
    log_path: Path,
    stdin_path: Path = Path(os.devnull),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    death_signal: Signals = SIGTERM,
    identity: Identity | None = None,
) -> ChildProcess:
    """Start a program with its output appended to `log_path`. Main thread only (see above)."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "children are spawned from the main thread: the kernel ends them with the thread that forked"
        )
    log_path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    standard_input = os.open(stdin_path, os.O_RDONLY)
    try:
        popen = subprocess.Popen(
            [os.fspath(part) for part in argv],
            stdin=standard_input,
            stdout=descriptor,
            stderr=descriptor,
            cwd=cwd,
            env=dict(env) if env is not None else None,
            start_new_session=True,
            preexec_fn=_die_with(os.getpid(), death_signal),  # noqa: PLW1509 - one prctl, resolved before the fork
            user=identity.uid if identity else None,
            group=identity.gid if identity else None,
            extra_groups=[] if identity else None,
        )
    finally:
        os.close(descriptor)
        os.close(standard_input)
    return ChildProcess(popen, log_path)


def tail(path: Path, lines: int) -> str:
    """The last lines of a file; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def await_stopped(processes: Iterable[psutil.Process]) -> None:
    """Wait until the kernel has carried SIGSTOP out everywhere."""
    deadline = time.monotonic() + 5
    for process in processes:
        with contextlib.suppress(psutil.Error):
            while process.status() not in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"process {process.pid} does not stop")
                time.sleep(0.001)


def end_quietly(process: psutil.Process) -> None:
    """Kill one process if it is still the same one."""
    with contextlib.suppress(psutil.Error):
        process.kill()


def _end_all(processes: Sequence[psutil.Process]) -> None:
    """Descendants left over are killed; psutil compares creation times, so a reused pid is safe."""
    _, alive = psutil.wait_procs(processes, timeout=0.5)
    for process in alive:
        end_quietly(process)
    deadline = time.monotonic() + 5
    while any(is_alive(process) for process in alive) and time.monotonic() < deadline:
        time.sleep(0.01)


def is_alive(process: psutil.Process) -> bool:
    """Tell whether it runs. A zombie does not: it waits for a parent that some containers' init never is."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _die_with(parent: int, death_signal: Signals) -> Callable[[], None]:
    def ask_kernel() -> None:
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

    return ask_kernel
