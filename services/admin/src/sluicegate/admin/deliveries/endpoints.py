"""`/api/deliveries`."""

from typing import Annotated

from fastapi import APIRouter, Query

from sluicegate.admin.access import ByCaller
from sluicegate.admin.answers import NOT_FOUND
from sluicegate.admin.commands import Commanded
from sluicegate.admin.deliveries.schemas import Delivery, DeliveryPage, DeliveryQuery, WholeDelivery
from sluicegate.admin.deliveries.service import DeliveryService
from sluicegate.admin.listing import cut


def router(service: DeliveryService) -> APIRouter:
    """Return the endpoints over `service`."""
    routes = APIRouter(prefix="/deliveries", tags=["deliveries"])

    @routes.get("", operation_id="listDeliveries")
    async def page(query: Annotated[DeliveryQuery, Query()]) -> DeliveryPage:
        """List deliveries, newest first."""
        rows, has_more = cut(await service.page(query), query.limit)
        return DeliveryPage(data=[Delivery.model_validate(row) for row in rows], next=rows[-1].id if has_more else None)

    @routes.get("/{delivery_id}", operation_id="getDelivery", responses=NOT_FOUND)
    async def get(delivery_id: str) -> WholeDelivery:
        """Show a delivery with its attempts."""
        return WholeDelivery.model_validate(await service.get(delivery_id))

    @routes.post("/{delivery_id}/replay", operation_id="replayDelivery", status_code=202, responses=NOT_FOUND)
    async def replay(delivery_id: str, _caller: ByCaller) -> Commanded:
        """Deliver it once more, with all its attempts; also one that arrived. Its message id stays."""
        return Commanded(command=await service.replay(delivery_id))

    return routes
