"""What may be done with deliveries: they are looked at, and begun anew by command."""

from sluicegate.admin.changes.changes import Changes, found
from sluicegate.admin.commands import AlertCommands
from sluicegate.admin.deliveries import repository
from sluicegate.admin.deliveries.repository import DeliveryRow, WholeDeliveryRow
from sluicegate.admin.deliveries.schemas import DeliveryQuery


class DeliveryService:
    """Deliveries."""

    def __init__(self, changes: Changes, commands: AlertCommands) -> None:
        self._changes = changes
        self._commands = commands

    async def get(self, delivery_id: str) -> WholeDeliveryRow:
        row = await self._changes.read(lambda connection: repository.get(connection, delivery_id))
        return found(row, "delivery", delivery_id)

    async def page(self, query: DeliveryQuery) -> list[DeliveryRow]:
        """Return up to one row more than the page holds."""
        return await self._changes.read(
            lambda connection: repository.page(
                connection,
                before=query.cursor,
                count=query.limit + 1,
                state=query.state,
                webhook=query.webhook,
                alert=query.alert,
                tenant=query.tenant,
                command=query.command,
            )
        )

    async def replay(self, delivery_id: str) -> str:
        """Have it begun anew, whatever came of it before; return the command's id."""
        await self.get(delivery_id)
        return await self._commands.replay(delivery_id)
