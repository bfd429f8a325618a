"""One started service: its process, its ports, and whether it is ready. Knows nothing of the others."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL

import httpx
import psutil

from sluicegate.devstack.servers.ports import free_port, is_free, listens
from sluicegate.devstack.servers.process import ChildProcess, spawn
from sluicegate.devstack.stack.services import VARIABLE_OF, Service, ServicePort

_PORT_TRIES = 3


class ServiceDiedError(RuntimeError):
    """A service or server ended by itself, or never became ready."""

    def __init__(self, name: str, text: str, log_tail: str) -> None:
        super().__init__(text)
        self.name = name
        self.log_tail = log_tail


class RunningService:
    """Ports are chosen at the first start and kept: a restarted service comes back where it was."""

    def __init__(self, service: Service, *, state: Path, log_path: Path, values: Mapping[str, str]) -> None:
        """`values` holds an entry for each need of the service, and what its `env` names."""
        self.service = service
        self.name = service.name
        self._state = state
        self._log_path = log_path
        self._values = values
        self._ports: dict[str, int] = {}
        self._tries_left = _PORT_TRIES
        self._process: ChildProcess | None = None
        self.last_answer = "no answer"

    def url(self, port: str = "main") -> str:
        return f"http://127.0.0.1:{self._ports[port]}"

    @property
    def process(self) -> ChildProcess:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process

    @property
    def is_running(self) -> bool:
        return self.process.is_running

    @property
    def place(self) -> str:
        return " ".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def launch(self, taken: set[int]) -> None:
        """Start the process; `taken` are ports promised to others, and grows by ours."""
        if not self._ports:
            for name, port in self.service.ports.items():
                self._ports[name] = free_port(_wish(port), avoid=taken)
                taken.add(self._ports[name])
        self._state.mkdir(parents=True, exist_ok=True, mode=0o700)
        arguments = [part.format(**self._ports) for part in self.service.command]
        self._process = spawn(
            [sys.executable, "-m", "sluicegate.cli", *arguments],
            log_path=self._log_path,
            env=self._environment(),
            death_signal=SIGKILL,
        )

    async def check_ready(self, client: httpx.AsyncClient, taken: set[int]) -> bool:
        """Look once. Raises ServiceDiedError, unless a snatched port was the reason: then it is started again."""
        if not self.process.is_running:
            self._tries_left -= 1
            if all(map(is_free, self._ports.values())) or not self._tries_left:
                raise ServiceDiedError(self.name, f"{self.name} {self.process.death()}", self.process.log_tail())
            self._ports = {}
            self.launch(taken)
            return False
        try:
            answer = await client.get(self.service.ready.format(**self._ports))
        except httpx.TransportError:
            return False
        self.last_answer = f"{answer.status_code} {answer.text[:300]}"
        return answer.status_code == 200 and all(
            listens(self.process.pid, port) is not False for port in self._ports.values()
        )

    def pids(self) -> dict[str, list[int]]:
        """Name → pids, as `stack.json` lists them."""
        if not self.process.is_running:
            return {}
        if not self.service.has_workers:
            return {self.name: [self.process.pid]}
        try:
            workers = [child.pid for child in psutil.Process(self.process.pid).children()]
        except psutil.Error:
            workers = []
        return {self.name: workers, f"{self.name}-supervisor": [self.process.pid]}

    def _environment(self) -> dict[str, str]:
        service = self.service
        own = {port.variable: str(self._ports[name]) for name, port in service.ports.items() if port.variable}
        filling = {"state": str(self._state.resolve()), **self._values}
        return (
            dict(service.defaults)
            | {name: value for name, value in os.environ.items() if name not in VARIABLE_OF.values()}
            | {"PYTHONUNBUFFERED": "1"}
            | {VARIABLE_OF[need]: self._values[need] for need in service.needs}
            | {name: value.format(**filling) for name, value in service.env.items()}
            | own
        )


def _wish(port: ServicePort) -> int:
    """The user's own setting, if there is one."""
    wish = os.environ.get(port.variable, "") if port.variable else ""
    return int(wish) if wish.isdigit() else port.preferred
