"""All parts of one stack: the servers and the services over them, started, found, and stopped in order."""

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from signal import SIGTERM

import httpx

from sluicegate.devstack.servers import EmbeddedServer, ServerError
from sluicegate.devstack.stack.layout import Home, Secrets
from sluicegate.devstack.stack.leftovers import ProcessRecord, kill_session
from sluicegate.devstack.stack.neighbours import (
    External,
    NeighbourName,
    embedded_neighbours,
    external_neighbours,
    service_url,
)
from sluicegate.devstack.stack.reporting import Note, Reporter, Step
from sluicegate.devstack.stack.running import RunningService, ServiceDiedError
from sluicegate.devstack.stack.services import Service

START_DEADLINE_S = 60.0
_STOP_DEADLINE_S = 10.0
_HURRIED_STOP_S = 2.0

Part = EmbeddedServer | RunningService


class Fleet:
    """Spawns from the main thread only (see `servers.process`): blocking calls are short, waiting is asyncio's."""

    def __init__(self, home: Home, secrets: Secrets, report: Reporter) -> None:
        self._home = home
        self._secrets = secrets
        self._report = report
        self._record = ProcessRecord(home.processes)
        self._taken_ports: set[int] = set()
        self._external: dict[NeighbourName, External] = {}
        self._embedded: list[EmbeddedServer] = []
        self._services: list[RunningService] = []
        self.hurry = asyncio.Event()

    @property
    def has_external(self) -> bool:
        return bool(self._external)

    def service(self, name: str) -> RunningService:
        return next(service for service in self._services if service.name == name)

    def url_of(self, name: NeighbourName) -> str:
        """With user and password."""
        if name in self._external:
            return self._external[name].url
        return next(service_url(server) for server in self._embedded if server.name == name)

    def processes(self) -> dict[str, list[int]]:
        """Name → pids, as `stack.json` lists them."""
        found = {server.name: [server.pid] for server in self._embedded if server.is_running}
        for service in self._services:
            found |= service.pids()
        return found

    def lost_workers(self, before: Mapping[str, list[int]]) -> list[tuple[RunningService, int]]:
        """Workers that were listed before and are gone, though their supervisor lives."""
        return [
            (service, pid)
            for service in self._services
            if service.service.has_workers and service.is_running
            for pid in sorted(set(before.get(service.name, [])) - set(service.pids()[service.name]))
        ]

    def record_processes(self) -> None:
        """Write down what runs, for a next start to end it should the supervisor be killed."""
        self._record.write(pid for pids in self.processes().values() for pid in pids)

    def dead_parts(self) -> list[Part]:
        parts: list[Part] = [*self._embedded, *self._services]
        return [part for part in parts if not part.is_running]

    def raise_if_dead(self, *, but: Collection[Part] = ()) -> None:
        """Name the cause: a part that died makes others fail in ways that say less."""
        for part in self.dead_parts():
            if part in but:
                continue
            raise ServiceDiedError(part.name, f"{part.name} {part.process.death()}", part.process.log_tail())

    async def start_servers(self) -> None:
        """All at once; raises when one does not come up."""
        self._external = external_neighbours()
        for external in self._external.values():
            external.check()
            self._report(Step(external.name, "ready", external.place))
        self._embedded = embedded_neighbours(self._home, self._secrets, self._external)
        for server in self._embedded:
            self._report(Step(server.name, "starting"))
            server.launch()
            self.record_processes()
        waiting = list(self._embedded)
        deadline = time.monotonic() + START_DEADLINE_S
        while waiting:
            for server in [server for server in waiting if server.check_ready()]:
                waiting.remove(server)
                self._report(Step(server.name, "ready", f"127.0.0.1:{server.port}"))
            if waiting and time.monotonic() > deadline:
                raise ServerError(f"{waiting[0].name} was not ready in time:\n{waiting[0].log_tail()}")
            await asyncio.sleep(0.01)

    async def start_services(self, rows: Iterable[Service], values: Mapping[str, str]) -> None:
        """All at once; raises when one dies or does not become ready."""
        for row in rows:
            service = RunningService(
                row, state=self._home.data / row.name, log_path=self._home.log_of(row.name), values=values
            )
            self._report(Step(service.name, "starting"))
            service.launch(self._taken_ports)
            self._services.append(service)
            self.record_processes()
        await self._until_ready(self._services, is_first_start=True)

    async def start_again(self, part: Part) -> None:
        """On the same ports and data."""
        if isinstance(part, EmbeddedServer):
            part.start()
        else:
            part.launch(self._taken_ports)
            await self._until_ready([part])

    async def _until_ready(self, services: Iterable[RunningService], *, is_first_start: bool = False) -> None:
        waiting = list(services)
        deadline = time.monotonic() + START_DEADLINE_S
        async with httpx.AsyncClient(timeout=2, trust_env=False) as client:
            while waiting:
                answers = await asyncio.gather(*(each.check_ready(client, self._taken_ports) for each in waiting))
                for service, is_ready in zip(tuple(waiting), answers, strict=True):
                    if is_ready:
                        waiting.remove(service)
                        self._report(Step(service.name, "ready", service.place))
                if is_first_start:
                    self.raise_if_dead(but=waiting)
                if waiting and time.monotonic() > deadline:
                    slow = waiting[0]
                    raise ServiceDiedError(
                        slow.name, f"{slow.name} is not ready ({slow.last_answer})", slow.process.log_tail()
                    )
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """The edge first, so that it settles what it has while the others still listen; the servers last."""
        await self._end([service for service in self._services if service.service.stops_first])
        await self._end([service for service in self._services if not service.service.stops_first])
        for server in self._embedded:
            with contextlib.suppress(ServerError):
                server.stop(deadline_s=self._patience_s)
            self._report(Step(server.name, "stopped"))
        self._record.write([])

    async def _end(self, services: list[RunningService]) -> None:
        for service in services:
            self._report(Step(service.name, "stopping"))
            service.process.signal(SIGTERM)
        began = time.monotonic()
        while any(service.is_running for service in services):
            if time.monotonic() - began > self._patience_s:
                break
            await asyncio.sleep(0.02)
        for service in services:
            if service.is_running:
                self._report(Note(f"{service.name} did not stop in time and was killed"))
            service.process.kill()
            kill_session(service.process.pid)
            self._report(Step(service.name, "stopped"))

    @property
    def _patience_s(self) -> float:
        return _HURRIED_STOP_S if self.hurry.is_set() else _STOP_DEADLINE_S
