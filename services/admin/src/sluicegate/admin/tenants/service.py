"""What may be done with tenants."""

from dataclasses import replace

from sluicegate.admin import limits, removal
from sluicegate.admin.access import Caller
from sluicegate.admin.changes.changes import Changed, Changes, found
from sluicegate.admin.changes.unit import Ref, Unit, check_version
from sluicegate.admin.fields import changes_of, snapshot
from sluicegate.admin.tenants import repository
from sluicegate.admin.tenants.repository import TenantRow
from sluicegate.admin.tenants.schemas import NewTenant, Tenant, TenantPatch, TenantQuery
from sluicegate.contracts.ids import new_id


class TenantService:
    """Tenants."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def create(self, body: NewTenant, caller: Caller) -> Changed[TenantRow]:
        async def work(unit: Unit) -> TenantRow:
            row = await repository.insert(
                unit.connection,
                tenant_id=new_id("ten"),
                name=body.name,
                enabled=body.enabled,
                limits=limits.new(body.limits),
                end_user_limits=limits.new(body.end_user_limits),
                default_key_limits=limits.new(body.default_key_limits),
            )
            unit.note("created", Ref("tenant", row.id), before=None, after=snapshot(Tenant, row))
            return row

        return await self._changes.change(caller, work)

    async def get(self, tenant_id: str) -> TenantRow:
        row = await self._changes.read(lambda connection: repository.get(connection, tenant_id))
        return found(row, "tenant", tenant_id)

    async def page(self, query: TenantQuery) -> list[TenantRow]:
        """Return up to one row more than the page holds."""
        return await self._changes.read(
            lambda connection: repository.page(connection, after=query.cursor, count=query.limit + 1, name=query.name)
        )

    async def update(
        self, tenant_id: str, patch: TenantPatch, caller: Caller, version: int | None
    ) -> Changed[TenantRow]:
        async def work(unit: Unit) -> TenantRow:
            before = found(await repository.lock(unit.connection, tenant_id), "tenant", tenant_id)
            check_version(before.version, version)
            wanted = replace(before, **limits.laid_over(before, changes_of(patch)))
            ref = Ref("tenant", tenant_id)
            if wanted == before:
                unit.touch(ref)
                return before
            after = await repository.update(unit.connection, wanted)
            unit.note("updated", ref, before=snapshot(Tenant, before), after=snapshot(Tenant, after))
            return after

        return await self._changes.change(caller, work)

    async def delete(self, tenant_id: str, caller: Caller, version: int | None, *, cascade: bool) -> Changed[int]:
        """Delete it, with all that belongs to it if `cascade`; the row is how many records went."""

        async def work(unit: Unit) -> int:
            row = found(await repository.lock(unit.connection, tenant_id), "tenant", tenant_id)
            check_version(row.version, version)
            return await removal.remove_tenant(unit, row, cascade=cascade)

        return await self._changes.change(caller, work)
