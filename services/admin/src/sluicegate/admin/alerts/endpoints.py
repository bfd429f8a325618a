"""`/api/alerts`."""

from typing import Annotated

from fastapi import APIRouter, Query

from sluicegate.admin.alerts.schemas import Alert, AlertPage, AlertQuery
from sluicegate.admin.alerts.service import AlertService
from sluicegate.admin.answers import NOT_FOUND
from sluicegate.admin.listing import cut


def router(service: AlertService) -> APIRouter:
    """Return the endpoints over `service`."""
    routes = APIRouter(prefix="/alerts", tags=["alerts"])

    @routes.get("", operation_id="listAlerts")
    async def page(query: Annotated[AlertQuery, Query()]) -> AlertPage:
        """List alerts, newest first."""
        rows, has_more = cut(await service.page(query), query.limit)
        return AlertPage(data=[Alert.model_validate(row) for row in rows], next=rows[-1].id if has_more else None)

    @routes.get("/{alert_id}", operation_id="getAlert", responses=NOT_FOUND)
    async def get(alert_id: str) -> Alert:
        """Show an alert."""
        return Alert.model_validate(await service.get(alert_id))

    return routes
