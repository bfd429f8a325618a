"""Builds the real objects of this room and runs them together. The only place that knows them all."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from sluicegate.budget_alert import repository
from sluicegate.budget_alert.addresses import Resolver
from sluicegate.budget_alert.auditor import Auditor
from sluicegate.budget_alert.config import AlertSettings
from sluicegate.budget_alert.delivering import Deliveries
from sluicegate.budget_alert.handlers import AlertHandler
from sluicegate.budget_alert.meters import PresentMeters
from sluicegate.budget_alert.metrics import Metrics
from sluicegate.budget_alert.sender import Sender
from sluicegate.budget_alert.spending import Spending
from sluicegate.budget_alert.subscribers import subscribe
from sluicegate.bus.acked_publisher import AckedPublisher
from sluicegate.bus.connection import Connection
from sluicegate.bus.declaration import Declarations
from sluicegate.bus.worker import Settlement, Worker
from sluicegate.contracts.subjects import ALERT_COMMANDS, ALERT_WORKER, ALERTS, DEADLETTER_STREAM
from sluicegate.ledger.meters import ONE_TAG
from sluicegate.ledger.store import RedisMeterStore, StoreError
from sluicegate.runtime.health import Health, internal_app, serve_internal
from sluicegate.runtime.key_ring import KeyRing
from sluicegate.store import readiness
from sluicegate.store.pool import close_pool, open_pool

_log = structlog.get_logger("sluicegate.budget_alert.wiring")

NAME: Final = "sluicegate-budget-alert"
_CONNECTIONS: Final = 8
_METERS_EVERY_S: Final = 2.0


async def run(settings: AlertSettings, stop: asyncio.Event) -> None:
    """Run budget-alert until `stop` is set. Starts, and goes on, without PostgreSQL, NATS or Valkey."""
    health = Health("postgres", "nats", "meters")
    metrics = Metrics()
    url = settings.nats_url.get_secret_value()
    redis_url = settings.redis_url.get_secret_value()
    connection = Connection(NAME)
    pool = await open_pool(settings.postgres_dsn.get_secret_value(), application_name=NAME, max_size=_CONNECTIONS)
    publisher = AckedPublisher(connection)
    store = RedisMeterStore(redis_url)
    present = PresentMeters(redis_url)
    resolver = Resolver()
    deliveries = Deliveries(
        pool,
        Sender(resolver),
        KeyRing.parse(settings.key_ring.get_secret_value()),
        metrics,
        at_once=settings.deliveries_at_once,
        per_endpoint=settings.deliveries_per_endpoint,
    )
    handler = AlertHandler(pool, Settlement(publisher, "budget-alert"), metrics, deliveries.look_now)
    auditor = Auditor(
        pool,
        store,
        present,
        Spending(connection),
        publisher,
        metrics,
        every_s=settings.audit_every_s,
        wait_s=settings.audit_wait_s,
    )
    declarations = Declarations(
        connection,
        streams=(ALERTS, DEADLETTER_STREAM),
        consumers=(ALERT_WORKER, ALERT_COMMANDS),
        buckets=(),
        replicas=settings.nats_replicas,
    )
    worker = Worker(
        url,
        name=f"{NAME}-consumer",
        connection=connection,
        declarations=declarations,
        subscribe=lambda broker: subscribe(broker, handler),
    )
    app = internal_app(health, metrics.registry)
    async with serve_internal(app, settings.internal_host, settings.internal_port) as port:
        _log.info("started", internal_port=port)
        background = [
            asyncio.create_task(connection.open(url), name="nats"),
            asyncio.create_task(declarations.run(), name="declarations"),
            asyncio.create_task(deliveries.run(), name="deliveries"),
            asyncio.create_task(auditor.run(), name="auditor"),
            asyncio.create_task(readiness.watch(pool, repository.look, partial(health.set_ready, "postgres"))),
            asyncio.create_task(worker.watch(partial(health.set_ready, "nats"))),
            asyncio.create_task(_watch_meters(store, partial(health.set_ready, "meters"))),
        ]
        consuming = asyncio.create_task(worker.run(), name="worker")
        await stop.wait()
        _log.info("stopping")
        worker.stop()
        await consuming
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await deliveries.drain()
        resolver.close()
        await store.close()
        await present.close()
        await close_pool(pool)
        await connection.close()


async def _watch_meters(store: RedisMeterStore, report: Callable[[bool, str], None]) -> None:
    while True:
        try:
            await store.now_ms(ONE_TAG)
            report(True, "")
        except StoreError as error:
            report(False, str(error))
        await asyncio.sleep(_METERS_EVERY_S)
