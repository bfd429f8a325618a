"""`/api/teams`."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from sluicegate.admin.access import ByCaller
from sluicegate.admin.answers import (
    CONFLICT,
    NOT_FOUND,
    Cascade,
    Deleted,
    ExpectedVersion,
    shown,
    with_propagation,
)
from sluicegate.admin.listing import cut
from sluicegate.admin.teams.schemas import NewTeam, Team, TeamChanged, TeamPage, TeamPatch, TeamQuery
from sluicegate.admin.teams.service import TeamService


def router(service: TeamService) -> APIRouter:
    """Return the endpoints over `service`."""
    routes = APIRouter(prefix="/teams", tags=["teams"])

    @routes.post("", operation_id="createTeam", status_code=201, responses=CONFLICT)
    async def create(body: NewTeam, caller: ByCaller, response: Response) -> TeamChanged:
        """Make a team."""
        changed = await service.create(body, caller)
        record = Team.model_validate(changed.row)
        shown(record, response)
        return with_propagation(TeamChanged, record, changed.propagation)

    @routes.get("", operation_id="listTeams")
    async def page(query: Annotated[TeamQuery, Query()]) -> TeamPage:
        """List teams, oldest first."""
        rows, has_more = cut(await service.page(query), query.limit)
        return TeamPage(data=[Team.model_validate(row) for row in rows], next=rows[-1].id if has_more else None)

    @routes.get("/{team_id}", operation_id="getTeam", responses=NOT_FOUND)
    async def get(team_id: str, response: Response) -> Team:
        """Show a team."""
        record = Team.model_validate(await service.get(team_id))
        shown(record, response)
        return record

    @routes.patch("/{team_id}", operation_id="updateTeam", responses=NOT_FOUND | CONFLICT)
    async def update(
        team_id: str, body: TeamPatch, caller: ByCaller, version: ExpectedVersion, response: Response
    ) -> TeamChanged:
        """Change a team. Disabling it refuses all requests of its keys."""
        changed = await service.update(team_id, body, caller, version)
        record = Team.model_validate(changed.row)
        shown(record, response)
        return with_propagation(TeamChanged, record, changed.propagation)

    @routes.delete("/{team_id}", operation_id="deleteTeam", responses=NOT_FOUND | CONFLICT)
    async def delete(team_id: str, caller: ByCaller, version: ExpectedVersion, cascade: Cascade = False) -> Deleted:
        """Delete a team. Refused while it has keys, unless `cascade`: then they go, and are refused from now on."""
        changed = await service.delete(team_id, caller, version, cascade=cascade)
        return Deleted(id=team_id, deleted_records=changed.row, **dict(changed.propagation))

    return routes
