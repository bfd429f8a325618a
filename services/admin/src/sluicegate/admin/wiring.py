"""The only place that builds real objects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.types import ASGIApp

from sluicegate.admin import application
from sluicegate.admin.alerts import endpoints as alerts
from sluicegate.admin.alerts.service import AlertService
from sluicegate.admin.background import stop
from sluicegate.admin.budgets import endpoints as budgets
from sluicegate.admin.budgets.service import BudgetService
from sluicegate.admin.changes.changes import Changes
from sluicegate.admin.commands import AlertCommands
from sluicegate.admin.config import AdminSettings
from sluicegate.admin.deliveries import endpoints as deliveries
from sluicegate.admin.deliveries.service import DeliveryService
from sluicegate.admin.departments import endpoints as departments
from sluicegate.admin.departments.service import DepartmentService
from sluicegate.admin.keys import endpoints as keys
from sluicegate.admin.keys.service import KeyService
from sluicegate.admin.metrics import Metrics
from sluicegate.admin.models import endpoints as models
from sluicegate.admin.models.service import ModelService
from sluicegate.admin.projection.audit import AuditPublisher
from sluicegate.admin.projection.buckets import Buckets
from sluicegate.admin.projection.comparison import Comparison
from sluicegate.admin.projection.edges import LiveEdges
from sluicegate.admin.projection.projection import EdgeProjection
from sluicegate.admin.projection.relay import Relay
from sluicegate.admin.providers import endpoints as providers
from sluicegate.admin.providers.service import ProviderService
from sluicegate.admin.readiness import watch
from sluicegate.admin.routes import endpoints as routes
from sluicegate.admin.routes.service import RouteService
from sluicegate.admin.teams import endpoints as teams
from sluicegate.admin.teams.service import TeamService
from sluicegate.admin.tenants import endpoints as tenants
from sluicegate.admin.tenants.service import TenantService
from sluicegate.admin.webhooks import endpoints as webhooks
from sluicegate.admin.webhooks.service import WebhookService
from sluicegate.bus.connection import Connection
from sluicegate.bus.declaration import Declarations
from sluicegate.contracts import subjects
from sluicegate.runtime.health import Health
from sluicegate.runtime.key_ring import KeyRing
from sluicegate.store.pool import Pool, open_pool

APPLICATION_NAME = "sluicegate-admin"


@dataclass(frozen=True)
class Admin:
    """A running admin service without its ports."""

    app: ASGIApp
    health: Health
    metrics: Metrics
    pool: Pool
    connection: Connection
    projection: EdgeProjection
    relay: Relay
    comparison: Comparison
    edges: LiveEdges


@asynccontextmanager
async def running(settings: AdminSettings) -> AsyncIterator[Admin]:
    """Build everything and run what works in the background. Neither database nor NATS need to be there."""
    pool = await open_pool(settings.postgres_dsn.get_secret_value(), application_name=APPLICATION_NAME)
    admin = _build(settings, pool)
    tasks = [
        asyncio.create_task(admin.projection.run(), name="projection"),
        asyncio.create_task(watch(admin.health, admin.metrics, pool, admin.connection), name="readiness"),
    ]
    try:
        yield admin
    finally:
        await stop(tasks)
        await _close(pool)


def _build(settings: AdminSettings, pool: Pool) -> Admin:
    connection = Connection(APPLICATION_NAME)
    buckets = Buckets(connection)
    metrics, edges = Metrics(), LiveEdges()
    relay = Relay(pool, buckets, AuditPublisher(connection))
    comparison = Comparison(pool, buckets, relay)
    declarations = Declarations(
        connection,
        streams=(subjects.AUDIT_STREAM, subjects.ALERTS),
        consumers=(),
        buckets=subjects.BUCKETS,
        replicas=settings.nats_replicas,
        check_every_s=2.0,
    )
    projection = EdgeProjection(
        connection, settings.nats_url.get_secret_value(), declarations, relay, comparison, edges, metrics
    )
    metrics.live_edges.set_function(lambda: edges.live_count)
    metrics.told.set_function(lambda: relay.told_count)
    metrics.repaired.set_function(lambda: comparison.repaired_count)
    changes, commands = Changes(pool, projection), AlertCommands(connection)
    key_ring = KeyRing.parse(settings.key_ring.get_secret_value())
    app = application.build(
        [
            tenants.router(TenantService(changes)),
            departments.router(DepartmentService(changes)),
            teams.router(TeamService(changes)),
            keys.router(KeyService(changes)),
            providers.router(ProviderService(changes, key_ring)),
            models.router(ModelService(changes)),
            routes.router(RouteService(changes)),
            budgets.router(BudgetService(changes)),
            webhooks.router(WebhookService(changes, key_ring, commands)),
            alerts.router(AlertService(changes)),
            deliveries.router(DeliveryService(changes, commands)),
        ],
        settings.bootstrap_token.get_secret_value(),
    )
    return Admin(
        app=app,
        health=Health("postgres"),
        metrics=metrics,
        pool=pool,
        connection=connection,
        projection=projection,
        relay=relay,
        comparison=comparison,
        edges=edges,
    )


async def _close(pool: Pool) -> None:
    try:
        async with asyncio.timeout(2.0):
            await pool.close()
    except TimeoutError:
        pool.terminate()
