"""What may be done with departments."""

from dataclasses import replace

from sluicegate.admin import limits, removal
from sluicegate.admin.access import Caller
from sluicegate.admin.changes.changes import Changed, Changes, found
from sluicegate.admin.changes.unit import Ref, Unit, check_version
from sluicegate.admin.departments import repository
from sluicegate.admin.departments.repository import DepartmentRow
from sluicegate.admin.departments.schemas import Department, DepartmentPatch, DepartmentQuery, NewDepartment
from sluicegate.admin.errors import UnknownReferenceError
from sluicegate.admin.fields import changes_of, snapshot
from sluicegate.admin.tenants import repository as tenants
from sluicegate.contracts.ids import new_id


class DepartmentService:
    """Departments."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def create(self, body: NewDepartment, caller: Caller) -> Changed[DepartmentRow]:
        async def work(unit: Unit) -> DepartmentRow:
            if not await tenants.hold(unit.connection, body.tenant):
                raise UnknownReferenceError("tenant", "tenant", body.tenant)
            row = await repository.insert(
                unit.connection,
                department_id=new_id("dep"),
                tenant=body.tenant,
                name=body.name,
                enabled=body.enabled,
                limits=limits.new(body.limits),
            )
            unit.note("created", Ref("department", row.id), before=None, after=snapshot(Department, row))
            return row

        return await self._changes.change(caller, work)

    async def get(self, department_id: str) -> DepartmentRow:
        row = await self._changes.read(lambda connection: repository.get(connection, department_id))
        return found(row, "department", department_id)

    async def page(self, query: DepartmentQuery) -> list[DepartmentRow]:
        """Return up to one row more than the page holds."""
        return await self._changes.read(
            lambda connection: repository.page(
                connection, after=query.cursor, count=query.limit + 1, tenant=query.tenant, name=query.name
            )
        )

    async def update(
        self, department_id: str, patch: DepartmentPatch, caller: Caller, version: int | None
    ) -> Changed[DepartmentRow]:
        async def work(unit: Unit) -> DepartmentRow:
            before = found(await repository.lock(unit.connection, department_id), "department", department_id)
            check_version(before.version, version)
            wanted = replace(before, **limits.laid_over(before, changes_of(patch)))
            ref = Ref("department", department_id)
            if wanted == before:
                unit.touch(ref)
                return before
            after = await repository.update(unit.connection, wanted)
            unit.note("updated", ref, before=snapshot(Department, before), after=snapshot(Department, after))
            return after

        return await self._changes.change(caller, work)

    async def delete(self, department_id: str, caller: Caller, version: int | None, *, cascade: bool) -> Changed[int]:
        """Delete it, with all that belongs to it if `cascade`; the row is how many records went."""

        async def work(unit: Unit) -> int:
            row = found(await repository.lock(unit.connection, department_id), "department", department_id)
            check_version(row.version, version)
            return await removal.remove_department(unit, row, cascade=cascade)

        return await self._changes.change(caller, work)
