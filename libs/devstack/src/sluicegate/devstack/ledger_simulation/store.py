"""The ledger's store as one process sees it: the library's own scripts, arguments and answers over a `Link`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sluicegate.devstack.ledger_simulation.network import Link, Unreachable
from sluicegate.devstack.ledger_simulation.server import EPOCH_S, Server
from sluicegate.devstack.ledger_simulation.virtual_loop import VirtualLoop
from sluicegate.ledger import store
from sluicegate.ledger.store import Audit, Call, Reply, Seed, StoreError

Result = TypeVar("Result")


@dataclass
class Scripts:
    """The text of the three scripts; mutations change them."""

    sync: str = store.SYNC_SCRIPT
    seed: str = store.SEED_SCRIPT
    audit: str = store.AUDIT_SCRIPT


class Watcher(Protocol):
    """Who is told of each call at the instant at which the server has run it."""

    def sends(self) -> int:
        """Name this moment in the life of the process."""
        ...

    def executed(self, call: Call, reply: Reply, sent: int) -> None:
        """A call that was sent at the moment `sent` has run."""
        ...

    def repaired(self, name: str) -> None:
        """A meter was seeded or audited."""
        ...


class SimulatedStore:
    """A `MeterStore`."""

    def __init__(self, loop: VirtualLoop, server: Server, link: Link, scripts: Scripts, watcher: Watcher) -> None:
        self._loop = loop
        self._server = server
        self._link = link
        self._scripts = scripts
        self._watcher = watcher
        self.knows_of_losses = server.losses  # how often the server had lost data when it gave the last answer

    async def sync(self, tag: str, call: Call) -> Reply:
        sent = self._watcher.sends()

        def execute() -> tuple[Reply, int]:
            keys, arguments = store.sync_arguments(tag, call)
            reply = store.read_sync(self._server.run_script(self._scripts.sync, keys, arguments, self._loop.time()))
            self._watcher.executed(call, reply, sent)
            return reply, self._server.losses

        reply, self.knows_of_losses = await self._through(execute)
        return reply

    async def seed(self, tag: str, seeds: Sequence[Seed]) -> None:
        keys, arguments = store.seed_arguments(tag, seeds)

        def execute() -> None:
            self._server.run_script(self._scripts.seed, keys, arguments, self._loop.time())
            for seed in seeds:
                self._watcher.repaired(seed.name)

        await self._through(execute)

    async def audit(self, tag: str, name: str, recorded: int, read_at_ms: int, *, is_complete: bool) -> Audit:
        keys, arguments = store.audit_arguments(tag, name, recorded, read_at_ms, is_complete=is_complete)

        def execute() -> Audit:
            found = self._server.run_script(self._scripts.audit, keys, arguments, self._loop.time())
            self._watcher.repaired(name)
            return store.read_audit(found)

        return await self._through(execute)

    async def now_ms(self, tag: str) -> int:  # noqa: ARG002 (there is one server)
        return await self._through(lambda: int((EPOCH_S + self._loop.time()) * 1000))

    async def close(self) -> None:
        """There is nothing to close."""

    async def _through(self, execute: Callable[[], Result]) -> Result:
        try:
            return await self._link.call(execute)
        except Unreachable as error:
            raise StoreError(str(error)) from error
