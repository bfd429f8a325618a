"""A stack of a test's own: `sluicegate up` as a child that ends with the test."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals

from sluicegate.devstack.servers.process import ChildProcess, Identity, spawn, tail
from sluicegate.devstack.stack_client import Stack

_STACK_SETTINGS = ("SLUICEGATE_HOME", "SLUICEGATE_NATS_URL", "SLUICEGATE_POSTGRES_DSN", "SLUICEGATE_REDIS_URL")


class StackFailedError(RuntimeError):
    """`up` ended before the stack was ready; the message is what it printed."""


class OwnStack:
    """`up` in the foreground with `home` as its folder. What it prints goes to `output`."""

    def __init__(
        self,
        home: Path,
        arguments: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        identity: Identity | None = None,
    ) -> None:
        self.home = home
        self.output = home.with_name(f"{home.name}.up.log")
        self._arguments = arguments
        self._env = {name: value for name, value in os.environ.items() if name not in _STACK_SETTINGS} | dict(env or {})
        self._python = python
        self._identity = identity
        self._process: ChildProcess | None = None

    @property
    def process(self) -> ChildProcess:
        assert self._process is not None
        return self._process

    @property
    def is_launched(self) -> bool:
        return self._process is not None

    def launch(self, *more_arguments: str) -> None:
        """Start it; main thread only."""
        self.output.unlink(missing_ok=True)
        self._process = spawn(
            [self._python, "-m", "sluicegate.cli", "up", "--home", self.home, *self._arguments, *more_arguments],
            log_path=self.output,
            env=self._env,
            cwd=Path("/"),
            death_signal=SIGTERM,
            identity=self._identity,
        )

    def start(self, *more_arguments: str, deadline_s: float = 120) -> Stack:
        """Start it and wait until it is ready."""
        self.launch(*more_arguments)
        return self.wait_ready(deadline_s=deadline_s)

    def wait_ready(self, *, deadline_s: float = 120) -> Stack:
        deadline = time.monotonic() + deadline_s
        while True:
            try:
                return Stack.read(self.home / "stack.json")
            except FileNotFoundError:
                if not self.process.is_running or time.monotonic() > deadline:
                    text = self.text()
                    self.stop()
                    raise StackFailedError(text) from None
            time.sleep(0.05)

    def stop(self, number: Signals = SIGINT, *, deadline_s: float = 60) -> int | None:
        """Ctrl-C, and wait for the end; its exit status."""
        return self.process.stop(number, deadline_s=deadline_s)

    def text(self) -> str:
        """What it has printed."""
        return tail(self.output, 200)
