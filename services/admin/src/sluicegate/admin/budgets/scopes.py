"""What a budget is for, whichever noun it is."""

from dataclasses import dataclass

from sluicegate.admin.departments import repository as departments
from sluicegate.admin.errors import UnknownReferenceError
from sluicegate.admin.keys import repository as keys
from sluicegate.admin.models import repository as models
from sluicegate.admin.providers import repository as providers
from sluicegate.admin.teams import repository as teams
from sluicegate.admin.tenants import repository as tenants
from sluicegate.contracts.catalogue import Scope
from sluicegate.store.pool import PoolConnection


@dataclass(frozen=True, slots=True)
class Owner:
    """To whom a scope belongs. No tenant: to the platform, as providers for all tenants and their models do."""

    tenant: str | None


async def hold_scope(connection: PoolConnection, scope: Scope, scope_id: str) -> Owner:
    """Return the owner, and keep the scope from being deleted until the end of the transaction.

    Raises UnknownReferenceError if there is no such record.
    """
    owner = await _owner(connection, scope, scope_id)
    if owner is None:
        raise UnknownReferenceError("scope_id", scope, scope_id)
    return owner


async def _owner(connection: PoolConnection, scope: Scope, scope_id: str) -> Owner | None:
    if scope in {"provider", "model"}:
        hold_several = providers.hold if scope == "provider" else models.hold
        owners = await hold_several(connection, [scope_id])
        return Owner(owners[scope_id]) if scope_id in owners else None
    if scope == "tenant":
        return Owner(scope_id) if await tenants.hold(connection, scope_id) else None
    hold = {"department": departments.hold, "team": teams.hold, "key": keys.hold}[scope]
    tenant = await hold(connection, scope_id)
    return None if tenant is None else Owner(tenant)
