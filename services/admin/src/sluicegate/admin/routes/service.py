"""What may be done with routes."""

from collections.abc import Sequence
from dataclasses import replace

from sluicegate.admin import removal
from sluicegate.admin.access import Caller
from sluicegate.admin.changes.changes import Changed, Changes, found
from sluicegate.admin.changes.unit import Ref, Unit, check_version
from sluicegate.admin.errors import InvalidError, UnknownReferenceError
from sluicegate.admin.fields import changes_of, snapshot
from sluicegate.admin.models import repository as models
from sluicegate.admin.routes import repository
from sluicegate.admin.routes.repository import RouteRow
from sluicegate.admin.routes.schemas import NewRoute, Route, RoutePatch, RouteQuery
from sluicegate.admin.tenants import repository as tenants
from sluicegate.contracts.ids import new_id


class RouteService:
    """Routes."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def create(self, body: NewRoute, caller: Caller) -> Changed[RouteRow]:
        async def work(unit: Unit) -> RouteRow:
            if body.tenant is not None and not await tenants.hold(unit.connection, body.tenant):
                raise UnknownReferenceError("tenant", "tenant", body.tenant)
            targets = [target.model for target in body.targets]
            await _hold_targets(unit, body.tenant, targets)
            route_id = new_id("rte")
            await repository.insert(
                unit.connection,
                route_id=route_id,
                tenant=body.tenant,
                alias=body.alias,
                name=body.name or body.alias,
                enabled=body.enabled,
                models=targets,
            )
            row = found(await repository.get(unit.connection, route_id), "route", route_id)
            unit.note("created", Ref("route", row.id), before=None, after=snapshot(Route, row))
            return row

        return await self._changes.change(caller, work)

    async def get(self, route_id: str) -> RouteRow:
        row = await self._changes.read(lambda connection: repository.get(connection, route_id))
        return found(row, "route", route_id)

    async def page(self, query: RouteQuery) -> list[RouteRow]:
        """Return up to one row more than the page holds."""
        return await self._changes.read(
            lambda connection: repository.page(
                connection, after=query.cursor, count=query.limit + 1, tenant=query.tenant, alias=query.alias
            )
        )

    async def update(self, route_id: str, patch: RoutePatch, caller: Caller, version: int | None) -> Changed[RouteRow]:
        async def work(unit: Unit) -> RouteRow:
            before = found(await repository.lock(unit.connection, route_id), "route", route_id)
            check_version(before.version, version)
            named = changes_of(patch)
            if "targets" in named:
                named["models"] = [target.model for target in named.pop("targets")]
            wanted = replace(before, **named)
            ref = Ref("route", route_id)
            if wanted == before:
                unit.touch(ref)
                return before
            await _hold_targets(unit, wanted.tenant, wanted.models)
            await repository.update(unit.connection, wanted)
            after = found(await repository.get(unit.connection, route_id), "route", route_id)
            unit.note("updated", ref, before=snapshot(Route, before), after=snapshot(Route, after))
            return after

        return await self._changes.change(caller, work)

    async def delete(self, route_id: str, caller: Caller, version: int | None) -> Changed[int]:
        """Delete it; the row is how many records went."""

        async def work(unit: Unit) -> int:
            row = found(await repository.lock(unit.connection, route_id), "route", route_id)
            check_version(row.version, version)
            return await removal.remove_routes(unit, [row])

        return await self._changes.change(caller, work)


async def _hold_targets(unit: Unit, tenant: str | None, model_ids: Sequence[str]) -> None:
    """Raise unless each model exists and its provider may serve this tenant (None: all tenants)."""
    owners = await models.hold(unit.connection, model_ids)
    for place, model_id in enumerate(model_ids):
        field = f"targets.{place}.model"
        if model_id not in owners:
            raise UnknownReferenceError(field, "model", model_id)
        if owners[model_id] not in {None, tenant}:
            raise InvalidError(field, f"The provider of model {model_id} belongs to another tenant than the route")
