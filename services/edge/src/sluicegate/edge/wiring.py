"""Builds one edge process out of its parts. The only place that makes real objects."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable

from sluicegate.bus.acked_publisher import AckedPublisher
from sluicegate.bus.connection import Connection
from sluicegate.edge.config import EdgeSettings
from sluicegate.edge.edge import Edge
from sluicegate.edge.inbound.deadlines import Timed, sweep
from sluicegate.edge.journal.journal import Journal, JournalSettings
from sluicegate.edge.metrics import Metrics, sample_loop_lag
from sluicegate.edge.mirrors.feed import MirrorFeed
from sluicegate.edge.mirrors.limits import LimitFinder
from sluicegate.edge.mirrors.view import View
from sluicegate.edge.outbound.pool import Pools
from sluicegate.edge.phases.refuse import stop_all
from sluicegate.edge.refused_keys import RefusedKeys
from sluicegate.edge.spent import SpentSoFar
from sluicegate.edge.thresholds import Thresholds
from sluicegate.edge.worker_port import Readiness
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.store import RedisMeterStore, StoreError
from sluicegate.runtime.key_ring import KeyRing
from sluicegate.runtime.logs import get_logger

_JOURNAL_CLOSE_S = 5.0
_LEDGER_CLOSE_S = 2.0
_LOOK_AGAIN_S = 0.02
_LOOK_AT_STORE_S = 1.0
_log = get_logger(__name__)


class EdgeProcess:
    """One edge process: `start` and `stop` run with the server, in its loop."""

    def __init__(self, settings: EdgeSettings, connections: Callable[[], set[Timed]]) -> None:
        """`connections`: the server's live client connections."""
        self.settings = settings
        self.metrics = Metrics()
        self._connections = connections
        self._edge_id = str(uuid.uuid4())
        self._connection = Connection(f"sluicegate-edge-{self._edge_id[:8]}")
        self._tasks: list[asyncio.Task[None]] = []
        self._feed: MirrorFeed | None = None
        self._journal: Journal | None = None
        self._ledger: Ledger | None = None
        self._thresholds: Thresholds | None = None
        self.edge: Edge | None = None

    async def start(self) -> Edge:
        """Build everything, start it, and wait for the mirrors; NATS may be away: the process is then not ready."""
        settings, metrics = self.settings, self.metrics
        pools = Pools()
        key_ring = KeyRing.parse(settings.key_ring.get_secret_value())
        self._thresholds = thresholds = Thresholds(AckedPublisher(self._connection))
        store = RedisMeterStore(settings.redis_url.get_secret_value())
        self._ledger = ledger = Ledger(
            store,
            spent_so_far=SpentSoFar(self._connection),
            on_spent=thresholds.on_spent,
            when_store_away=settings.limits_when_store_away,
            configured_edges=max(settings.limits_expected_workers, settings.workers),
            process=self._edge_id,
        )
        await ledger.start()
        view = View(pools, key_ring, LimitFinder(ledger, thresholds.watch), self._is_fresh)
        self._feed = feed = MirrorFeed(self._connection, view, self._edge_id)
        self._journal = journal = Journal(
            settings.state_dir / "journal",
            self._edge_id,
            AckedPublisher(self._connection),
            JournalSettings(cap_bytes=settings.journal_cap_bytes, on_full=settings.journal_when_full),
        )
        await journal.start()
        refused_keys = RefusedKeys(self._connection, self._edge_id)
        self.edge = edge = Edge(
            settings,
            edge_id=self._edge_id,
            metrics=metrics,
            pools=pools,
            view=view,
            journal=journal,
            refused_keys=refused_keys,
            ledger=ledger,
            thresholds=thresholds,
        )
        feed.report_to(metrics)
        _report_journal(journal, metrics)
        _report_ledger(ledger, metrics)
        metrics.watch("mirror_entries", lambda: view.entries)
        metrics.watch("mirror_bad_records_total", lambda: view.bad_records)
        self._tasks = [
            asyncio.create_task(self._connect(), name="connect"),
            asyncio.create_task(feed.run(), name="feed"),
            asyncio.create_task(_look_at(store), name="store-check"),
            asyncio.create_task(tell_of_outages(ledger, settings.limits_when_store_away), name="store-outages"),
            asyncio.create_task(refused_keys.run(), name="refused-keys"),
            asyncio.create_task(sweep(edge, self._connections()), name="deadlines"),
            asyncio.create_task(sample_loop_lag(metrics), name="loop-lag"),
        ]
        await self._wait_for_mirrors(feed)
        return edge

    async def _wait_for_mirrors(self, feed: MirrorFeed) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.mirror_wait_s):
                while not feed.is_ready:  # noqa: ASYNC110 - once in a process's life, and the feed stays simpler
                    await asyncio.sleep(_LOOK_AGAIN_S)

    async def stop(self) -> None:
        """End what is still open, each with its record, and flush the journal."""
        edge = self.edge
        if edge is not None:
            stop_all(edge)
            await _attempt("publish refused keys", edge.refused_keys.publish())
        if self._ledger is not None and self._thresholds is not None:
            await _attempt("give back leases", self._ledger.close(_LEDGER_CLOSE_S))
            await _attempt("leave Valkey", self._ledger.store.close())
            await _attempt("tell thresholds", self._thresholds.close(_LEDGER_CLOSE_S))
        if self._journal is not None:
            await _attempt("flush the journal", self._journal.close(_JOURNAL_CLOSE_S))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(Exception):  # the client may be closed, connecting or gone: the process ends anyway
            await self._connection.close()

    def readiness(self) -> Readiness:
        """Tell whether this process takes requests."""
        feed, edge = self._feed, self.edge
        if feed is None or edge is None:
            return Readiness(is_ready=False, detail="starting")
        if edge.is_draining:
            return Readiness(is_ready=False, detail="stopping")
        if not feed.is_ready:
            return Readiness(is_ready=False, detail="keys and catalogue are not read yet")
        return Readiness(is_ready=True, detail="; ".join(filter(None, (feed.stale_reason, self._limits_detail()))))

    def _limits_detail(self) -> str:
        """Say what limits rest on while the store of meters is away: requests go on."""
        if self._ledger is None or self._ledger.state == "ok":
            return ""
        return f"limits: Valkey does not answer, {self.settings.limits_when_store_away}"

    def drain(self) -> None:
        """A stop was announced: go on serving, and tell clients to connect elsewhere."""
        if self.edge is not None:
            self.edge.is_draining = True

    def _is_fresh(self) -> bool:
        return self._feed is not None and self._feed.is_ready and not self._feed.is_stale

    async def _connect(self) -> None:
        await self._connection.open(self.settings.nats_url.get_secret_value())


async def _attempt(what: str, step: Awaitable[None]) -> None:
    """Take one step of a stop; those behind it do not depend on it."""
    try:
        await step
    except Exception:  # noqa: BLE001 - whatever it is, the process ends
        _log.exception("a step of the stop failed", step=what)


async def _look_at(store: RedisMeterStore) -> None:
    """Say what of the store's settings would break a promise. Once: whether it answers is the pump's to see."""
    try:
        problems = await store.problems()
    except StoreError as error:
        _log.warning("Valkey does not answer; limits follow the policy until it does", reason=str(error))
        return
    for problem in problems:
        _log.warning("Valkey is not set up for limits", problem=problem)


async def tell_of_outages(ledger: Ledger, policy: str, every_s: float = _LOOK_AT_STORE_S) -> None:
    """Log when Valkey stops answering, and when it answers again. The ledger itself writes no log."""
    told = "ok"
    while True:
        if ledger.state != told:
            told = ledger.state
            if told == "ok":
                _log.info("Valkey answers again")
            else:
                _log.warning("Valkey does not answer; limits go on from leases, then by the policy", policy=policy)
        await asyncio.sleep(every_s)


def _report_ledger(ledger: Ledger, metrics: Metrics) -> None:
    counts = ledger.counts
    metrics.watch("limits_store_up", lambda: int(ledger.state == "ok"))
    metrics.watch("limits_store_clock_skew_seconds", lambda: ledger.clock_skew_s)
    metrics.watch("limits_store_calls_total", lambda: counts.calls)
    metrics.watch("limits_store_failures_total", lambda: counts.failures)
    metrics.watch("limits_meter_syncs_total", lambda: counts.syncs)
    metrics.watch("limits_waits_total", lambda: counts.waits)
    metrics.watch("limits_refused_total", lambda: counts.refused + counts.remembered)
    metrics.watch("limits_policy_served_total", lambda: counts.policy_served)
    metrics.watch("limits_policy_refused_total", lambda: counts.policy_refused)
    metrics.watch("limits_seeded_budgets_total", lambda: counts.seeds)
    metrics.watch("limits_store_losses_total", lambda: counts.losses)


def _report_journal(journal: Journal, metrics: Metrics) -> None:
    metrics.watch("journal_bytes", lambda: journal.size_bytes)
    metrics.watch("journal_unpublished_events", lambda: journal.unacked_count)
    metrics.watch("journal_open_requests", lambda: journal.open_count)
    metrics.watch("journal_dropped_events_total", lambda: journal.dropped_events)
    metrics.watch("journal_published_events_total", lambda: journal.outbox.published_events)
    metrics.watch("journal_adopted_events_total", lambda: journal.adoption.adopted_events)
    metrics.watch("journal_bad_records_total", lambda: journal.outbox.bad_records + journal.adoption.bad_records)
