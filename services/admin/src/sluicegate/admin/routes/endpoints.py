"""`/api/routes`."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from sluicegate.admin.access import ByCaller
from sluicegate.admin.answers import (
    CONFLICT,
    NOT_FOUND,
    Deleted,
    ExpectedVersion,
    shown,
    with_propagation,
)
from sluicegate.admin.listing import cut
from sluicegate.admin.routes.schemas import NewRoute, Route, RouteChanged, RoutePage, RoutePatch, RouteQuery
from sluicegate.admin.routes.service import RouteService


def router(service: RouteService) -> APIRouter:
    """Return the endpoints over `service`."""
    routes = APIRouter(prefix="/routes", tags=["routes"])

    @routes.post("", operation_id="createRoute", status_code=201, responses=CONFLICT)
    async def create(body: NewRoute, caller: ByCaller, response: Response) -> RouteChanged:
        """Make a route."""
        changed = await service.create(body, caller)
        record = Route.model_validate(changed.row)
        shown(record, response)
        return with_propagation(RouteChanged, record, changed.propagation)

    @routes.get("", operation_id="listRoutes")
    async def page(query: Annotated[RouteQuery, Query()]) -> RoutePage:
        """List routes, oldest first."""
        rows, has_more = cut(await service.page(query), query.limit)
        return RoutePage(data=[Route.model_validate(row) for row in rows], next=rows[-1].id if has_more else None)

    @routes.get("/{route_id}", operation_id="getRoute", responses=NOT_FOUND)
    async def get(route_id: str, response: Response) -> Route:
        """Show a route."""
        record = Route.model_validate(await service.get(route_id))
        shown(record, response)
        return record

    @routes.patch("/{route_id}", operation_id="updateRoute", responses=NOT_FOUND | CONFLICT)
    async def update(
        route_id: str, body: RoutePatch, caller: ByCaller, version: ExpectedVersion, response: Response
    ) -> RouteChanged:
        """Change a route. `targets`, if named, replaces the whole list."""
        changed = await service.update(route_id, body, caller, version)
        record = Route.model_validate(changed.row)
        shown(record, response)
        return with_propagation(RouteChanged, record, changed.propagation)

    @routes.delete("/{route_id}", operation_id="deleteRoute", responses=NOT_FOUND | CONFLICT)
    async def delete(route_id: str, caller: ByCaller, version: ExpectedVersion) -> Deleted:
        """Delete a route."""
        changed = await service.delete(route_id, caller, version)
        return Deleted(id=route_id, deleted_records=changed.row, **dict(changed.propagation))

    return routes
