"""`/api/webhooks`."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from sluicegate.admin.access import ByCaller
from sluicegate.admin.answers import CONFLICT, NOT_FOUND, ExpectedVersion, Removed, shown
from sluicegate.admin.commands import Commanded
from sluicegate.admin.listing import cut
from sluicegate.admin.webhooks.schemas import (
    NewWebhook,
    SecretRotation,
    Webhook,
    WebhookPage,
    WebhookPatch,
    WebhookQuery,
    WebhookWithSecret,
)
from sluicegate.admin.webhooks.service import WebhookService, WithSecret

_USUAL_ROTATION: Final = SecretRotation()


def router(service: WebhookService) -> APIRouter:
    """Return the endpoints over `service`."""
    routes = APIRouter(prefix="/webhooks", tags=["webhooks"])

    @routes.post("", operation_id="createWebhook", status_code=201, responses=CONFLICT)
    async def create(body: NewWebhook, caller: ByCaller, response: Response) -> WebhookWithSecret:
        """Make a webhook. The answer holds its secret: the only time it is shown."""
        return _with_secret(await service.create(body, caller), response)

    @routes.get("", operation_id="listWebhooks")
    async def page(query: Annotated[WebhookQuery, Query()]) -> WebhookPage:
        """List webhooks, oldest first."""
        rows, has_more = cut(await service.page(query), query.limit)
        return WebhookPage(data=[Webhook.model_validate(row) for row in rows], next=rows[-1].id if has_more else None)

    @routes.get("/{webhook_id}", operation_id="getWebhook", responses=NOT_FOUND)
    async def get(webhook_id: str, response: Response) -> Webhook:
        """Show a webhook."""
        record = Webhook.model_validate(await service.get(webhook_id))
        shown(record, response)
        return record

    @routes.patch("/{webhook_id}", operation_id="updateWebhook", responses=NOT_FOUND | CONFLICT)
    async def update(
        webhook_id: str, body: WebhookPatch, caller: ByCaller, version: ExpectedVersion, response: Response
    ) -> Webhook:
        """Change a webhook. Deliveries under way go by what it is now."""
        record = Webhook.model_validate(await service.update(webhook_id, body, caller, version))
        shown(record, response)
        return record

    @routes.post("/{webhook_id}/rotate-secret", operation_id="rotateWebhookSecret", responses=NOT_FOUND | CONFLICT)
    async def rotate_secret(
        webhook_id: str,
        caller: ByCaller,
        version: ExpectedVersion,
        response: Response,
        body: SecretRotation = _USUAL_ROTATION,
    ) -> WebhookWithSecret:
        """Replace the secret. The answer holds the new one: the only time it is shown."""
        return _with_secret(await service.rotate_secret(webhook_id, body, caller, version), response)

    @routes.post("/{webhook_id}/test", operation_id="testWebhook", status_code=202, responses=NOT_FOUND)
    async def test(webhook_id: str, _caller: ByCaller) -> Commanded:
        """Send a test message there, also if it is not enabled. What came of it: `/api/deliveries?command=…`."""
        return Commanded(command=await service.test(webhook_id))

    @routes.delete("/{webhook_id}", operation_id="deleteWebhook", responses=NOT_FOUND | CONFLICT)
    async def delete(webhook_id: str, caller: ByCaller, version: ExpectedVersion) -> Removed:
        """Delete a webhook. What was not delivered there never will be."""
        return Removed(id=webhook_id, deleted_records=await service.delete(webhook_id, caller, version))

    return routes


def _with_secret(made: WithSecret, response: Response) -> WebhookWithSecret:
    record = Webhook.model_validate(made.row)
    shown(record, response)
    return WebhookWithSecret(**dict(record), secret=made.text)
