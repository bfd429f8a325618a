"""Builds the real objects of this room and runs them together. The only place that knows them all."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from sluicegate.bus.acked_publisher import AckedPublisher
from sluicegate.bus.connection import Connection
from sluicegate.bus.declaration import Declarations
from sluicegate.bus.worker import Settlement, Worker
from sluicegate.contracts.subjects import DEADLETTER_STREAM, SECURITY, USAGE, USAGE_WRITER
from sluicegate.runtime.health import Health, internal_app, serve_internal
from sluicegate.store import readiness
from sluicegate.store.pool import Connection as PostgresConnection
from sluicegate.store.pool import close_pool, open_pool
from sluicegate.usage_writer import repository
from sluicegate.usage_writer.config import WriterSettings
from sluicegate.usage_writer.dimensions import Dimensions
from sluicegate.usage_writer.handlers import UsageHandler
from sluicegate.usage_writer.metrics import Metrics
from sluicegate.usage_writer.spent import SpentHandler
from sluicegate.usage_writer.storing import Storing
from sluicegate.usage_writer.subscribers import Intake, subscribe

_log = structlog.get_logger("sluicegate.usage_writer.wiring")

NAME: Final = "sluicegate-usage-writer"
_LAG_EVERY_S: Final = 5.0
_STORING_EVERY_S: Final = 1.0


async def run(settings: WriterSettings, stop: asyncio.Event) -> None:
    """Run usage-writer until `stop` is set. Starts, and goes on, without PostgreSQL or NATS."""
    health = Health("postgres", "nats", "storing")
    metrics = Metrics()
    url = settings.nats_url.get_secret_value()
    connection = Connection(NAME)
    dimensions = Dimensions()
    storing = Storing()

    async def prepare(new: PostgresConnection) -> None:
        # A new connection may lead to another server, or an older state of it.
        handler.forget()
        await repository.make_stage(new)

    pool = await open_pool(
        settings.postgres_dsn.get_secret_value(),
        application_name=NAME,
        max_size=settings.batches_in_flight + 4,
        server_settings={"jit": "off"},
        init=prepare,
    )
    publisher = AckedPublisher(connection)
    handler = UsageHandler(
        pool,
        dimensions,
        Settlement(publisher, "usage-writer"),
        metrics,
        storing,
        retention_days=settings.usage_retention_days,
        transaction_rows=settings.transaction_rows,
    )
    intake = Intake(handler, settings.batches_in_flight)
    js = connection.jetstream(timeout=2.0)
    spent = SpentHandler(pool, js)
    declarations = Declarations(
        connection,
        streams=(USAGE, SECURITY, DEADLETTER_STREAM),
        consumers=(USAGE_WRITER,),
        buckets=(),
        replicas=settings.nats_replicas,
    )
    worker = Worker(
        url,
        name=f"{NAME}-consumer",
        connection=connection,
        declarations=declarations,
        subscribe=lambda broker: subscribe(broker, settings, intake, spent),
        before_close=intake.drain,
    )
    app = internal_app(health, metrics.registry)
    async with serve_internal(app, settings.internal_host, settings.internal_port) as port:
        _log.info("started", internal_port=port)
        background = [
            asyncio.create_task(connection.open(url), name="nats"),
            asyncio.create_task(declarations.run(), name="declarations"),
            asyncio.create_task(readiness.watch(pool, repository.store_nothing, partial(health.set_ready, "postgres"))),
            asyncio.create_task(_watch_storing(storing, partial(health.set_ready, "storing"))),
            asyncio.create_task(worker.watch(partial(health.set_ready, "nats"))),
            asyncio.create_task(_watch_lag(js, metrics), name="lag"),
        ]
        consuming = asyncio.create_task(worker.run(), name="worker")
        await stop.wait()
        _log.info("stopping")
        worker.stop()
        await consuming
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await close_pool(pool)
        await connection.close()


async def _watch_storing(storing: Storing, report: Callable[[bool, str], None]) -> None:
    while True:
        report(*storing.state())
        await asyncio.sleep(_STORING_EVERY_S)


async def _watch_lag(js: JetStreamContext, metrics: Metrics) -> None:
    while True:
        try:
            await _measure_lag(js, metrics)
        except (NatsError, APIError, TimeoutError) as error:
            _log.debug("lag not known", reason=str(error))
        await asyncio.sleep(_LAG_EVERY_S)


async def _measure_lag(js: JetStreamContext, metrics: Metrics) -> None:
    info = await js.consumer_info(USAGE_WRITER.stream, USAGE_WRITER.durable)
    unread = (info.num_pending or 0) + (info.num_ack_pending or 0)
    metrics.pending.set(unread)
    age_s = 0.0
    if unread:
        floor = info.ack_floor.stream_seq if info.ack_floor else 0
        try:
            oldest = await js.get_msg(
                USAGE_WRITER.stream, seq=floor + 1, subject=USAGE_WRITER.filter_subject, next=True
            )
        except NotFoundError:
            oldest = None
        if oldest is not None and oldest.time is not None:
            age_s = max(0.0, time.time() - oldest.time.timestamp())
    metrics.oldest_unread_seconds.set(age_s)
