"""Deleting a record together with all that belongs to it, each with an audit row and an outbox row of its own.

A parent that goes takes its keys along by revoking them one by one: the edges refuse a key by its own
record, so nothing depends on how they resolve its parents. Children come first in the outbox. Budgets are no
children: they go with what they are for, unasked and after it, so that nothing passes without them on the way.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from sluicegate.admin.budgets import repository as budgets
from sluicegate.admin.budgets.repository import BudgetRow
from sluicegate.admin.budgets.schemas import Budget
from sluicegate.admin.changes.unit import Ref, Unit
from sluicegate.admin.departments import repository as departments
from sluicegate.admin.departments.repository import DepartmentRow
from sluicegate.admin.departments.schemas import Department
from sluicegate.admin.errors import InUseError
from sluicegate.admin.fields import snapshot
from sluicegate.admin.keys import repository as keys
from sluicegate.admin.keys.repository import KeyRow
from sluicegate.admin.keys.schemas import Key
from sluicegate.admin.models import repository as models
from sluicegate.admin.models.repository import ModelRow
from sluicegate.admin.models.schemas import Model
from sluicegate.admin.providers import repository as providers
from sluicegate.admin.providers.repository import ProviderRow
from sluicegate.admin.providers.schemas import Provider
from sluicegate.admin.routes import repository as routes
from sluicegate.admin.routes.repository import RouteRow
from sluicegate.admin.routes.schemas import Route
from sluicegate.admin.teams import repository as teams
from sluicegate.admin.teams.repository import TeamRow
from sluicegate.admin.teams.schemas import Team
from sluicegate.admin.tenants import repository as tenants
from sluicegate.admin.tenants.repository import TenantRow
from sluicegate.admin.tenants.schemas import Tenant
from sluicegate.admin.webhooks import repository as webhooks
from sluicegate.admin.webhooks.repository import WebhookRow
from sluicegate.admin.webhooks.snapshots import webhook_snapshot

_CASCADE: Final = "Delete them first, or send ?cascade=true to delete them as well."


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


def _refuse(noun: str, record_id: str, **counts: int) -> None:
    """Raise InUseError if anything still belongs to a record."""
    left = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    if left:
        raise InUseError(f"Still belonging to {noun} {record_id}: {left}.", _CASCADE)


async def remove_webhooks(unit: Unit, rows: Sequence[WebhookRow]) -> int:
    """Delete webhooks with their secrets; return how many."""
    await webhooks.delete(unit.connection, [row.id for row in rows])
    for row in rows:
        unit.note("deleted", Ref("webhook", row.id), before=webhook_snapshot(row), after=None)
    return len(rows)


async def remove_budgets(unit: Unit, rows: Sequence[BudgetRow]) -> int:
    """Delete budgets; return how many."""
    await budgets.delete(unit.connection, [row.id for row in rows])
    for row in rows:
        unit.note("deleted", Ref("budget", row.id), before=snapshot(Budget, row), after=None)
    return len(rows)


async def _remove_budgets_of(unit: Unit, rows: Sequence[_HasId]) -> int:
    """Delete the budgets of records that go; return how many."""
    return await remove_budgets(unit, await budgets.lock_of_scopes(unit.connection, [row.id for row in rows]))


async def remove_keys(unit: Unit, rows: Sequence[KeyRow]) -> int:
    """Revoke these keys and take them out of the lists; return how many records went."""
    await keys.delete(unit.connection, [row.id for row in rows])
    for row in rows:
        unit.note("deleted", Ref("key", row.id), before=snapshot(Key, row), after=None)
    return len(rows) + await _remove_budgets_of(unit, rows)


async def remove_teams(unit: Unit, rows: Sequence[TeamRow], *, cascade: bool) -> int:
    """Delete teams; return how many records went."""
    owned = await keys.lock_of_teams(unit.connection, [row.id for row in rows])
    if not cascade and rows:
        _refuse("team", rows[0].id, keys=len(owned))
    count = await remove_keys(unit, owned)
    await teams.delete(unit.connection, [row.id for row in rows])
    for row in rows:
        unit.note("deleted", Ref("team", row.id), before=snapshot(Team, row), after=None)
    return count + len(rows) + await _remove_budgets_of(unit, rows)


async def remove_department(unit: Unit, row: DepartmentRow, *, cascade: bool) -> int:
    """Delete a department; return how many records went."""
    owned = await teams.lock_of_department(unit.connection, row.id)
    if not cascade:
        _refuse("department", row.id, teams=len(owned))
    return await remove_teams(unit, owned, cascade=True) + await _remove_departments(unit, [row])


async def remove_routes(unit: Unit, rows: Sequence[RouteRow]) -> int:
    """Delete routes; return how many."""
    await routes.delete(unit.connection, [row.id for row in rows])
    for row in rows:
        unit.note("deleted", Ref("route", row.id), before=snapshot(Route, row), after=None)
    return len(rows)


async def remove_models(unit: Unit, rows: Sequence[ModelRow]) -> int:
    """Delete models; raise InUseError while a route leads to one; return how many records went."""
    aliases = await routes.aliases_to(unit.connection, [row.id for row in rows])
    if aliases:
        named = ", ".join(aliases)
        raise InUseError(f"Routes lead there: {named}.", "Change or delete these routes first.")
    await models.delete(unit.connection, [row.id for row in rows])
    for row in rows:
        unit.note("deleted", Ref("model", row.id), before=snapshot(Model, row), after=None)
    return len(rows) + await _remove_budgets_of(unit, rows)


async def remove_providers(unit: Unit, rows: Sequence[ProviderRow], *, cascade: bool) -> int:
    """Delete providers; return how many records went."""
    owned = await models.lock_of_providers(unit.connection, [row.id for row in rows])
    if not cascade and rows:
        _refuse("provider", rows[0].id, models=len(owned))
    count = await remove_models(unit, owned)
    await providers.delete(unit.connection, [row.id for row in rows])
    for row in rows:
        unit.note("deleted", Ref("provider", row.id), before=snapshot(Provider, row), after=None)
    return count + len(rows) + await _remove_budgets_of(unit, rows)


async def remove_tenant(unit: Unit, row: TenantRow, *, cascade: bool) -> int:
    """Delete a tenant; return how many records went. Its providers serve its own routes only, so they can go."""
    owned_teams = await teams.lock_of_tenant(unit.connection, row.id)
    owned_departments = await departments.lock_of_tenant(unit.connection, row.id)
    owned_routes = await routes.lock_of_tenant(unit.connection, row.id)
    owned_providers = await providers.lock_of_tenant(unit.connection, row.id)
    owned_webhooks = await webhooks.lock_of_tenant(unit.connection, row.id)
    if not cascade:
        _refuse(
            "tenant",
            row.id,
            departments=len(owned_departments),
            teams=len(owned_teams),
            routes=len(owned_routes),
            providers=len(owned_providers),
            webhooks=len(owned_webhooks),
        )
    count = await remove_teams(unit, owned_teams, cascade=True)
    count += await _remove_departments(unit, owned_departments)
    count += await remove_routes(unit, owned_routes)
    count += await remove_providers(unit, owned_providers, cascade=True)
    count += await remove_webhooks(unit, owned_webhooks)
    await tenants.delete(unit.connection, [row.id])
    unit.note("deleted", Ref("tenant", row.id), before=snapshot(Tenant, row), after=None)
    return count + 1 + await _remove_budgets_of(unit, [row])


async def _remove_departments(unit: Unit, rows: Sequence[DepartmentRow]) -> int:
    await departments.delete(unit.connection, [row.id for row in rows])
    for row in rows:
        unit.note("deleted", Ref("department", row.id), before=snapshot(Department, row), after=None)
    return len(rows) + await _remove_budgets_of(unit, rows)
