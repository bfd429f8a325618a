"""One real edge server inside a test's own loop: uvicorn, `EdgeProtocol`, a fixed view, and a list as its journal.

Nothing is replaced on the request path. Left out are NATS, the supervisor and the disk.
"""

import asyncio
import contextlib
import socket
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import uvicorn
from pydantic import SecretStr

from sluicegate.contracts.catalogue import CatalogueRecord, Key, Model, Provider, Route, Target, Team, Tenant
from sluicegate.contracts.keys import key_digest, new_key
from sluicegate.contracts.money import Price
from sluicegate.contracts.usage import RequestAdmitted, UsageRecorded
from sluicegate.devstack.memory_transport import memory_client
from sluicegate.devstack.raw_http import RawClient, connected
from sluicegate.edge.config import EdgeSettings
from sluicegate.edge.edge import Edge
from sluicegate.edge.inbound.app import EdgeApp
from sluicegate.edge.inbound.deadlines import Timed, sweep
from sluicegate.edge.inbound.protocol import EdgeProtocol
from sluicegate.edge.journal.errors import JournalWriteError
from sluicegate.edge.metrics import Metrics
from sluicegate.edge.mirrors.limits import LimitFinder
from sluicegate.edge.mirrors.view import View
from sluicegate.edge.outbound.pool import Pools
from sluicegate.edge.phases.refuse import stop_all
from sluicegate.edge.refused_keys import RefusedKeys
from sluicegate.edge.thresholds import Thresholds
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter
from sluicegate.ledger.store import RedisMeterStore
from sluicegate.runtime.key_ring import KeyRing

PROVIDER_SECRET: Final = b"sk-provider-secret"
PRICE: Final = Price(version=1, valid_from_us=0, input=1_000_000_000, output=3_000_000_000)
_WAIT_S: Final = 10.0
_NO_REDIS: Final = "redis://127.0.0.1:1/0"


class ListJournal:
    """A journal that keeps everything in memory, in order."""

    def __init__(self) -> None:
        self.is_full = False
        self.fails = False
        self.admissions: list[RequestAdmitted] = []
        self.records: list[UsageRecorded] = []

    def admitted(self, request_id: str, body: bytes) -> None:
        """Keep an admission; the wire form is checked."""
        if self.fails:
            raise JournalWriteError("no space left")
        admission = msgspec.json.decode(body, type=RequestAdmitted)
        if admission.request_id != request_id:
            raise ValueError("an admission under another request's id")
        self.admissions.append(admission)

    def finished(self, request_id: str, tenant: str, body: bytes) -> None:
        """Keep a record; the wire form is checked."""
        record = msgspec.json.decode(body, type=UsageRecorded)
        if (record.request_id, record.tenant) != (request_id, tenant):
            raise ValueError("a record under another request's id or tenant")
        self.records.append(record)


class EdgeUnderTest:
    """A running edge and what it knows. The catalogue starts with one tenant, team, key, provider, model and route."""

    def __init__(self, provider_url: str, redis_url: str = _NO_REDIS, **settings: Any) -> None:
        """Without Valkey, limits are what the policy says."""
        ring = KeyRing.generate()
        self.key_ring = KeyRing.parse(ring)
        self.settings = EdgeSettings(
            nats_url=SecretStr("nats://nowhere:1"),
            key_ring=SecretStr(ring),
            redis_url=SecretStr(redis_url),
            state_dir=Path(tempfile.gettempdir()),
            **settings,
        )
        self.provider_url = provider_url
        self.key = new_key()
        self.journal = ListJournal()
        self.is_fresh = True
        # What budgets are seeded with; None: not known.
        self.spent_nano_usd: int | None = 0
        self.port = 0
        self.view: View = cast(View, None)
        self.edge: Edge = cast(Edge, None)
        self.config = uvicorn.Config(
            EdgeApp(self._start, self._stop),
            http=EdgeProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=int(self.settings.shutdown_timeout_s),
        )
        self.server = LoopServer(self.config)

    # What the edge knows

    def put(self, record: CatalogueRecord) -> None:
        """Put a catalogue record in place."""
        self.view.apply("catalogue", f"{type(record).__name__.lower()}.{record.id}", msgspec.json.encode(record))

    def remove(self, name: str) -> None:
        """Remove a catalogue record, by its name in the bucket."""
        self.view.apply("catalogue", name, None)

    def put_provider(self, provider_id: str = "prv_1", **fields: Any) -> None:
        """Put a provider in place; it points at the provider that the edge was started with."""
        defaults = {
            "name": "fake",
            "base_url": self.provider_url + "/v1",
            "credential": self.key_ring.seal(PROVIDER_SECRET, provider_id.encode()),
        }
        self.put(Provider(id=provider_id, **{**defaults, **fields}))

    def put_model(self, alias: str, *, name: str = "fake-gpt", providers: tuple[str, ...] = ("prv_1",)) -> None:
        """Put a route in place that leads, in order, to a model at each of the providers."""
        targets = []
        for provider in providers:
            model = f"mod_{alias}_{provider}"
            self.put(Model(id=model, name=name, provider=provider, prices=(PRICE,)))
            targets.append(Target(model=model))
        self.put(Route(id=f"rte_{alias}", name=alias, alias=alias, targets=tuple(targets)))

    def put_key(self, text: str, **fields: Any) -> None:
        """Put a key in place."""
        defaults = {"id": "key_1", "name": "k", "tenant": "ten_1", "team": "tea_1", "prefix": text[:12]}
        record = Key(**{**defaults, **fields})
        self.view.apply("keys", key_digest(text.encode()), msgspec.json.encode(record))

    # What happened

    @property
    def records(self) -> list[UsageRecorded]:
        """The usage records, in order."""
        return self.journal.records

    async def record(self, number: int = 0) -> UsageRecorded:
        """Wait until there is a record of that place, and return it."""
        await until(lambda: len(self.records) > number)
        return self.records[number]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RawClient]:
        """A raw connection to this edge."""
        async with connected(self.port) as client:
            yield client

    def memory_client(self) -> RawClient:
        """A connection without a socket: the edge gets the bytes in exactly the pieces they are sent in."""
        return memory_client(
            EdgeProtocol(config=self.config, server_state=self.server.server_state, app_state={"edge": self.edge})
        )

    async def start_parts(self, state: dict[str, Any]) -> None:
        """Build the edge without its server, and put it where the protocol class looks for it."""
        state["edge"] = await self._start()

    async def stop_parts(self) -> None:
        """End what `start_parts` began."""
        await self._stop()

    async def _spent_so_far(self, _meter: Meter) -> int | None:
        return self.spent_nano_usd

    # The server

    async def _start(self) -> Edge:
        pools = Pools()
        thresholds = Thresholds(None)
        self.ledger = Ledger(
            RedisMeterStore(self.settings.redis_url.get_secret_value()),
            spent_so_far=self._spent_so_far,
            on_spent=thresholds.on_spent,
            when_store_away=self.settings.limits_when_store_away,
            configured_edges=self.settings.limits_expected_workers,
        )
        await self.ledger.start()
        self.view = View(pools, self.key_ring, LimitFinder(self.ledger, thresholds.watch), lambda: self.is_fresh)
        self.put(Tenant(id="ten_1", name="tenant"))
        self.put(Team(id="tea_1", name="team", tenant="ten_1"))
        self.put_provider()
        self.put_model("demo")
        self.put_key(self.key)
        edge_id = str(uuid.uuid4())
        self.edge = Edge(
            self.settings,
            edge_id=edge_id,
            metrics=Metrics(),
            pools=pools,
            view=self.view,
            journal=self.journal,
            refused_keys=RefusedKeys(None, edge_id),
            ledger=self.ledger,
            thresholds=thresholds,
        )
        self._sweep = asyncio.create_task(sweep(self.edge, cast(set[Timed], self.server.server_state.connections)))
        return self.edge

    async def _stop(self) -> None:
        stop_all(self.edge)
        await self.ledger.close()
        await self.ledger.store.close()
        self._sweep.cancel()
        await asyncio.gather(self._sweep, return_exceptions=True)


class LoopServer(uvicorn.Server):
    """uvicorn's server without its signal handlers: the loop is the test's. It sees its end ten times as soon."""

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks // 10 if ticks % 10 == 0 else 1):
            await asyncio.sleep(0.01)
            ticks += 1

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def running_edge(provider_url: str, **settings: Any) -> AsyncIterator[EdgeUnderTest]:
    """An edge that listens on a free port for the length of the block. `settings` are those of `EdgeSettings`."""
    settings.setdefault("shutdown_timeout_s", 1.0)
    edge = EdgeUnderTest(provider_url, **settings)
    listener = socket.create_server(("127.0.0.1", 0))
    edge.port = listener.getsockname()[1]
    serving = asyncio.create_task(edge.server.serve(sockets=[listener]))
    try:
        await until(lambda: edge.server.started or serving.done())
        yield edge
    finally:
        edge.server.should_exit = True
        for connection in list(edge.server.server_state.connections):
            with contextlib.suppress(AttributeError):
                connection.transport.abort()
        await serving
        edge.edge.pools.close_idle(float("inf"))


async def until(is_so: Callable[[], bool], deadline_s: float = _WAIT_S) -> None:
    """Wait until something is so. TimeoutError: it is not in time."""
    ends_at = time.monotonic() + deadline_s
    while not is_so():
        if time.monotonic() > ends_at:
            raise TimeoutError("it did not come to that")
        await asyncio.sleep(0.002)
