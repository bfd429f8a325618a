"""What may be done with teams."""

from dataclasses import replace

from sluicegate.admin import limits, removal
from sluicegate.admin.access import Caller
from sluicegate.admin.changes.changes import Changed, Changes, found
from sluicegate.admin.changes.unit import Ref, Unit, check_version
from sluicegate.admin.departments import repository as departments
from sluicegate.admin.errors import UnknownReferenceError
from sluicegate.admin.fields import changes_of, snapshot
from sluicegate.admin.keys import repository as keys
from sluicegate.admin.teams import repository
from sluicegate.admin.teams.repository import TeamRow
from sluicegate.admin.teams.schemas import NewTeam, Team, TeamPatch, TeamQuery
from sluicegate.admin.tenants import repository as tenants
from sluicegate.contracts.ids import new_id
from sluicegate.store.pool import PoolConnection


class TeamService:
    """Teams."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def create(self, body: NewTeam, caller: Caller) -> Changed[TeamRow]:
        async def work(unit: Unit) -> TeamRow:
            if not await tenants.hold(unit.connection, body.tenant):
                raise UnknownReferenceError("tenant", "tenant", body.tenant)
            await _hold_department(unit.connection, body.tenant, body.department)
            row = await repository.insert(
                unit.connection,
                team_id=new_id("tea"),
                tenant=body.tenant,
                department=body.department,
                name=body.name,
                enabled=body.enabled,
                limits=limits.new(body.limits),
            )
            unit.note("created", Ref("team", row.id), before=None, after=snapshot(Team, row))
            return row

        return await self._changes.change(caller, work)

    async def get(self, team_id: str) -> TeamRow:
        row = await self._changes.read(lambda connection: repository.get(connection, team_id))
        return found(row, "team", team_id)

    async def page(self, query: TeamQuery) -> list[TeamRow]:
        """Return up to one row more than the page holds."""
        return await self._changes.read(
            lambda connection: repository.page(
                connection,
                after=query.cursor,
                count=query.limit + 1,
                tenant=query.tenant,
                department=query.department,
                name=query.name,
            )
        )

    async def update(self, team_id: str, patch: TeamPatch, caller: Caller, version: int | None) -> Changed[TeamRow]:
        async def work(unit: Unit) -> TeamRow:
            before = found(await repository.lock(unit.connection, team_id), "team", team_id)
            check_version(before.version, version)
            wanted = replace(before, **limits.laid_over(before, changes_of(patch)))
            ref = Ref("team", team_id)
            if wanted == before:
                unit.touch(ref)
                return before
            if wanted.department != before.department:
                await _hold_department(unit.connection, wanted.tenant, wanted.department)
                # The record of a key names the department: it changes with the team's.
                for key_id in await keys.ids_of_team(unit.connection, team_id):
                    unit.touch(Ref("key", key_id))
            after = await repository.update(unit.connection, wanted)
            unit.note("updated", ref, before=snapshot(Team, before), after=snapshot(Team, after))
            return after

        return await self._changes.change(caller, work)

    async def delete(self, team_id: str, caller: Caller, version: int | None, *, cascade: bool) -> Changed[int]:
        """Delete it, with all that belongs to it if `cascade`; the row is how many records went."""

        async def work(unit: Unit) -> int:
            row = found(await repository.lock(unit.connection, team_id), "team", team_id)
            check_version(row.version, version)
            return await removal.remove_teams(unit, [row], cascade=cascade)

        return await self._changes.change(caller, work)


async def _hold_department(connection: PoolConnection, tenant: str, department: str | None) -> None:
    if department is not None and await departments.hold(connection, department) != tenant:
        raise UnknownReferenceError("department", f"department of tenant {tenant}:", department)
