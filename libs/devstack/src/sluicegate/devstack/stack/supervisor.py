"""`python -m sluicegate.devstack.stack.supervisor OPTIONS`: starts one stack, watches it, and stops it in order."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from sluicegate.devstack.servers import ServerError
from sluicegate.devstack.servers.embedded import write_secret
from sluicegate.devstack.stack.demo import FAKE_MODEL, AdminClient, DemoError, DemoObjects, ensure_demo
from sluicegate.devstack.stack.fleet import Fleet, Part
from sluicegate.devstack.stack.layout import Home, HomeError, Lock, Secrets
from sluicegate.devstack.stack.leftovers import ProcessRecord, kill_session
from sluicegate.devstack.stack.neighbours import UnreachableError
from sluicegate.devstack.stack.options import StackOptions, api_url
from sluicegate.devstack.stack.reporting import Died, Failed, Note, Ready, Reporter, Step
from sluicegate.devstack.stack.running import ServiceDiedError
from sluicegate.devstack.stack.services import FAKE_PROVIDER, SERVICES
from sluicegate.runtime.key_ring import KeyRing
from sluicegate.store.migrations import MigrationError, migrate

PROVIDER_KEY_VARIABLE = "SLUICEGATE_DEMO_PROVIDER_KEY"

_WATCH_INTERVAL_S = 0.2
_LOOKS_PER_REFRESH = 5
_USABLE_DEADLINE_S = 10.0
_DEATHS_ALLOWED = 5
_DEATHS_WINDOW_S = 60.0

_EXPECTED = (ServiceDiedError, ServerError, MigrationError, UnreachableError, DemoError, OSError, httpx.HTTPError)


class Supervisor:
    """One stack, from the first process to the last. The caller holds the lock."""

    def __init__(self, options: StackOptions, home: Home, report: Reporter) -> None:
        self._options = options
        self._home = home
        self._report = report
        self._secrets = Secrets(home.secrets)
        self._fleet = Fleet(home, self._secrets, report)
        self._stack: dict[str, Any] = {}
        self._deaths: list[float] = []
        self._stop_asked = asyncio.Event()

    def ask_to_stop(self) -> None:
        """Asked twice: in a hurry."""
        if self._stop_asked.is_set():
            self._fleet.hurry.set()
        self._stop_asked.set()

    def stop_in_a_hurry(self) -> None:
        self._fleet.hurry.set()
        self._stop_asked.set()

    def front_is_gone(self) -> None:
        """Detached, the front goes once all is ready; gone before that, it was killed."""
        if self._options.is_tied or not self._stack:
            self.stop_in_a_hurry()

    async def run(self) -> int:
        """Exit status: 0 after a stop that was asked for."""
        starting = asyncio.create_task(self._start())
        asked = asyncio.create_task(self._stop_asked.wait())
        try:
            await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await self._watch()
        except _EXPECTED as error:
            self._tell(error)
            self._write_down(error)
            return 1
        finally:
            asked.cancel()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            self._home.stack_json.unlink(missing_ok=True)
            await self._fleet.stop()
        return 0

    # Start

    async def _start(self) -> None:
        fleet, report = self._fleet, self._report
        await fleet.start_servers()
        if fleet.has_external and self._options.is_fresh:
            report(Note("--fresh wiped local data only; external servers keep theirs"))
        report(Step("migrations", "starting"))
        await asyncio.to_thread(migrate, fleet.url_of("postgres"))
        report(Step("migrations", "ready"))
        rows = SERVICES if self._options.provider_url else (*SERVICES, FAKE_PROVIDER)
        await fleet.start_services(rows, self._values())
        report(Step("demo", "starting"))
        try:
            demo = await self._make_demo()
        except (DemoError, httpx.HTTPError):
            fleet.raise_if_dead()
            raise
        report(Step("demo", "ready", f"model {demo.model}"))
        self._describe(demo)
        report(Ready(self._stack))

    def _values(self) -> dict[str, str]:
        """What services need; keys and tokens in the environment win over generated ones."""
        key_ring = os.environ.get("SLUICEGATE_KEY_RING")
        return {
            "nats": self._fleet.url_of("nats"),
            "postgres": self._fleet.url_of("postgres"),
            "redis": self._fleet.url_of("valkey"),
            "key_ring": key_ring or self._secrets.get_or_make("key_ring", KeyRing.generate),
            "admin_token": self._admin_token(),
            "edge_workers": str(self._options.edge_workers),
        }

    def _admin_token(self) -> str:
        return os.environ.get("SLUICEGATE_ADMIN_BOOTSTRAP_TOKEN") or self._secrets.get_or_make("admin_token")

    def _provider_url(self) -> str:
        return api_url(self._options.provider_url or self._fleet.service(FAKE_PROVIDER.name).url())

    async def _make_demo(self) -> DemoObjects:
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            admin = AdminClient(client, self._fleet.service("admin").url(), self._admin_token())
            demo = await ensure_demo(
                admin,
                self._secrets,
                provider_url=self._provider_url(),
                provider_model=self._options.provider_model or FAKE_MODEL,
                provider_key=os.environ.get(PROVIDER_KEY_VARIABLE),
            )
            await self._until_usable(client, demo)
        return demo

    async def _until_usable(self, client: httpx.AsyncClient, demo: DemoObjects) -> None:
        """The curl line works when it is printed: the edge knows the key and the model."""
        url = f"{self._fleet.service('edge').url()}/v1/models/{demo.model}"
        deadline = time.monotonic() + _USABLE_DEADLINE_S
        while (answer := await client.get(url, headers={"Authorization": f"Bearer {demo.key}"})).status_code != 200:
            if time.monotonic() > deadline:
                raise DemoError(f"the edge does not take the demo key: {answer.status_code} {answer.text[:200]}")
            await asyncio.sleep(0.02)

    def _describe(self, demo: DemoObjects) -> None:
        fleet = self._fleet
        edge, admin = fleet.service("edge"), fleet.service("admin")
        self._stack = {
            "edge": {"url": edge.url(), "internal_url": edge.url("internal")},
            "admin": {"url": admin.url(), "token": self._admin_token()},
            "provider": {"url": self._provider_url().removesuffix("/v1")},
            "nats": {"url": fleet.url_of("nats")},
            "postgres": {"dsn": fleet.url_of("postgres")},
            "redis": {"url": fleet.url_of("valkey")},
            "key": demo.key,
            "model": demo.model,
            "supervisor": os.getpid(),
            "processes": fleet.processes(),
        }
        self._write_stack()

    def _write_stack(self) -> None:
        write_secret(self._home.stack_json, json.dumps(self._stack, indent=2) + "\n")

    # While it runs

    async def _watch(self) -> None:
        """Until a stop is asked for; raises if a part dies and is not to be started again."""
        looks = 0
        while not self._stop_asked.is_set():
            for part in self._fleet.dead_parts():
                await self._mourn(part)
            looks += 1
            if looks % _LOOKS_PER_REFRESH == 0:
                self._refresh()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_asked.wait(), _WATCH_INTERVAL_S)

    def _refresh(self) -> None:
        """Workers come and go: keep the files true."""
        processes = self._fleet.processes()
        if processes != self._stack["processes"]:
            for service, pid in self._fleet.lost_workers(self._stack["processes"]):
                what = f"worker {pid} of {service.name} is gone; its supervisor starts another"
                self._tell(ServiceDiedError(service.name, what, service.process.log_tail(8)))
            self._stack["processes"] = processes
            self._write_stack()
            self._fleet.record_processes()

    async def _mourn(self, part: Part) -> None:
        error = ServiceDiedError(part.name, f"{part.name} {part.process.death()}", part.process.log_tail())
        kill_session(part.process.pid)
        now = time.monotonic()
        self._deaths = [*(death for death in self._deaths if now - death < _DEATHS_WINDOW_S), now]
        if not self._options.is_restarting or len(self._deaths) > _DEATHS_ALLOWED:
            raise error
        self._tell(error)
        await self._fleet.start_again(part)
        self._report(Step(part.name, "ready", "again"))
        self._refresh()

    def _write_down(self, error: Exception) -> None:
        """For who comes back to a detached stack: nobody hears its reports."""
        where = f" ({self._home.log_of(error.name)})" if isinstance(error, ServiceDiedError) else ""
        with contextlib.suppress(OSError):
            self._home.end.write_text(f"{str(error) or type(error).__name__}{where}\n")

    def _tell(self, error: Exception) -> None:
        if isinstance(error, ServiceDiedError):
            self._report(Died(error.name, str(error), error.log_tail, str(self._home.log_of(error.name))))
        else:
            self._report(Failed(str(error) or type(error).__name__))


async def supervise(options: StackOptions) -> int:
    """Take the lock, tidy up, and run the stack."""
    report = Reporter()
    home = Home(Path(options.home))
    try:
        home.create()
        lock = Lock(home.lock)
        if not lock.acquire():
            report(Failed(f"a stack runs here already (supervisor {Lock.holder(home.lock)}); `down` stops it"))
            return 1
        _tidy_up(home, report, is_fresh=options.is_fresh)
        supervisor = Supervisor(options, home, report)
    except (HomeError, OSError) as error:
        report(Failed(str(error)))
        return 1
    _listen_for_stop(supervisor)
    return await supervisor.run()


def _tidy_up(home: Home, report: Reporter, *, is_fresh: bool) -> None:
    if killed := ProcessRecord(home.processes).end_leftovers():
        report(Note(f"ended {killed} processes of an earlier stack"))
    if is_fresh:
        home.wipe()
        home.create()
    home.stack_json.unlink(missing_ok=True)
    home.check_secrets()
    home.rotate_logs()


def _listen_for_stop(supervisor: Supervisor) -> None:
    loop = asyncio.get_running_loop()
    handlers: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGTERM: supervisor.ask_to_stop,
        signal.SIGINT: supervisor.ask_to_stop,
        signal.SIGQUIT: supervisor.stop_in_a_hurry,
    }
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    standard_input = sys.stdin.fileno()

    def end_of_file() -> None:
        loop.remove_reader(standard_input)
        supervisor.front_is_gone()

    loop.add_reader(standard_input, end_of_file)  # nothing is ever written to it


if __name__ == "__main__":
    raise SystemExit(asyncio.run(supervise(StackOptions.from_json(sys.argv[1]))))
