"""What all embedded servers share: a folder, a port of their own, a password, and a life that tests can break.

Start is `launch()` (returns at once) and `wait_ready()`, so that several servers start side by side. A server is ready
when *our* process listens and answers with the generated password. After the first start the port is pinned: a
restart comes back where its clients look for it.
"""

import secrets
import shutil
import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from sluicegate.devstack.servers.ports import free_port, is_free, listens
from sluicegate.devstack.servers.process import ChildProcess, tail

_PORT_TRIES = 5


class ServerError(RuntimeError):
    """A server did not start or ended; the message names it and quotes its log."""


class EmbeddedServer(ABC):
    """A server process with data in `directory`, on loopback."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]
    user: ClassVar[str] = "sluicegate"

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        password: str | None = None,
        log_path: Path | None = None,
    ) -> None:
        """`port` is a wish: if it is taken, another one is used. Data and password belong together."""
        self.directory = directory
        self.password = password or secrets.token_urlsafe(24)
        self.log_path = log_path or directory.parent / f"{directory.name}.log"
        self._wished_port = port
        self._port: int | None = None
        self._is_port_pinned = False
        self._tries_left = _PORT_TRIES
        self._process: ChildProcess | None = None

    @property
    def port(self) -> int:
        if self._port is None:
            raise ServerError(f"{self.name} was never started")
        return self._port

    @property
    def process(self) -> ChildProcess:
        if self._process is None:
            raise ServerError(f"{self.name} is not running")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    def start(self, *, deadline_s: float = 30) -> None:
        """Start and wait until it is ready."""
        self.launch()
        self.wait_ready(deadline_s=deadline_s)

    def launch(self) -> None:
        """Start the process; main thread only."""
        if self.is_running:
            return
        self.prepare()
        if not self._is_port_pinned:
            self._port = free_port(self._wished_port)
        elif not is_free(self.port):
            raise ServerError(
                f"{self.name}: port {self.port} was taken by another program while the server was stopped"
            )
        self._process = self.spawn()

    def wait_ready(self, *, deadline_s: float = 30) -> None:
        """Wait until our own process listens and answers; try another port if the chosen one was snatched."""
        deadline = time.monotonic() + deadline_s
        while not self.check_ready():
            if time.monotonic() > deadline:
                log = self.process.log_tail()
                self.kill()
                raise ServerError(f"{self.name} was not ready within {deadline_s:g} s:\n{log}")
            time.sleep(0.01)

    def check_ready(self) -> bool:
        """Look once, without waiting. Raises ServerError if the process ended; main thread only."""
        if self.process.is_running:
            # None: the system does not say who listens; the password, which no stranger knows, is the proof then.
            is_ready = listens(self.pid, self.port) is not False and self.answers()
            self._is_port_pinned |= is_ready
            return is_ready
        self._tries_left -= 1
        if self._is_port_pinned or is_free(self.port) or not self._tries_left:
            raise ServerError(f"{self.name} {self.process.death()}:\n{self.process.log_tail()}")
        self._wished_port = None  # somebody snatched the port between our look and the server's bind
        self.launch()
        return False

    def stop(self, *, deadline_s: float = 10) -> None:
        """Stop in order; the data stays."""
        if self._process is not None:
            self._process.stop(self.stop_signal, deadline_s=deadline_s)
            self._process = None

    def kill(self) -> None:
        """`kill -9` of the whole server."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        """Stop and start on the same port and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        """End a pause."""
        self.process.signal_family(signal.SIGCONT)

    def wipe(self) -> None:
        """Delete all data of a stopped server; the port and password stay."""
        if self.is_running:
            raise ServerError(f"{self.name} is running: stop it before its data goes")
        shutil.rmtree(self.directory, ignore_errors=True)

    def log_tail(self, lines: int = 20) -> str:
        return tail(self.log_path, lines)

    @property
    @abstractmethod
    def url(self) -> str:
        """Address with user and password."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the data folder ready; called before each launch."""

    @abstractmethod
    def spawn(self) -> ChildProcess:
        """Start the process on `self.port`."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it takes our password and serves."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def write_secret(path: Path, text: str) -> None:
    """A file only its owner can read, complete or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)
    scratch.touch(mode=0o600)
    scratch.write_text(text)
    scratch.replace(path)
