"""Builds the real objects of this room and runs them together. The only place that knows them all."""

import asyncio
from functools import partial
from typing import Final

import structlog

from sluicegate.bus.acked_publisher import AckedPublisher
from sluicegate.bus.connection import Connection
from sluicegate.bus.declaration import Declarations
from sluicegate.bus.worker import Settlement, Worker
from sluicegate.contracts.subjects import DEADLETTER_STREAM, RETENTION, RETENTION_WORKER
from sluicegate.retention.config import RetentionSettings
from sluicegate.retention.handlers import RetentionHandler
from sluicegate.retention.metrics import Metrics
from sluicegate.retention.subscribers import keep_schedule, subscribe
from sluicegate.runtime.health import Health, internal_app, serve_internal
from sluicegate.store import readiness
from sluicegate.store.pool import close_pool, open_pool

_log = structlog.get_logger("sluicegate.retention.wiring")

NAME: Final = "sluicegate-retention"


async def run(settings: RetentionSettings, stop: asyncio.Event) -> None:
    """Run retention until `stop` is set. Starts, and goes on, without PostgreSQL or NATS."""
    health = Health("postgres", "nats")
    metrics = Metrics()
    url = settings.nats_url.get_secret_value()
    connection = Connection(NAME)
    pool = await open_pool(settings.postgres_dsn.get_secret_value(), application_name=NAME, max_size=3)
    publisher = AckedPublisher(connection)
    handler = RetentionHandler(
        pool, publisher, Settlement(publisher, "retention"), metrics, days_ahead=settings.days_ahead
    )
    declarations = Declarations(
        connection,
        streams=(RETENTION, DEADLETTER_STREAM),
        consumers=(RETENTION_WORKER,),
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
            asyncio.create_task(connection.open(url)),
            asyncio.create_task(declarations.run()),
            asyncio.create_task(keep_schedule(handler, settings.run_every_s)),
            asyncio.create_task(
                readiness.watch(pool, readiness.needs_table("usage_rollup"), partial(health.set_ready, "postgres"))
            ),
            asyncio.create_task(worker.watch(partial(health.set_ready, "nats"))),
        ]
        consuming = asyncio.create_task(worker.run())
        await stop.wait()
        _log.info("stopping")
        worker.stop()
        await consuming
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await close_pool(pool)
        await connection.close()
