"""What may be done with alerts: they are looked at."""

from sluicegate.admin.alerts import repository
from sluicegate.admin.alerts.repository import AlertRow
from sluicegate.admin.alerts.schemas import AlertQuery
from sluicegate.admin.changes.changes import Changes, found


class AlertService:
    """Alerts."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def get(self, alert_id: str) -> AlertRow:
        row = await self._changes.read(lambda connection: repository.get(connection, alert_id))
        return found(row, "alert", alert_id)

    async def page(self, query: AlertQuery) -> list[AlertRow]:
        """Return up to one row more than the page holds."""
        return await self._changes.read(
            lambda connection: repository.page(
                connection,
                before=query.cursor,
                count=query.limit + 1,
                tenant=query.tenant,
                budget=query.budget,
                scope=query.scope,
                scope_id=query.scope_id,
            )
        )
