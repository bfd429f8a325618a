"""`/api/providers`."""

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
from sluicegate.admin.providers.schemas import (
    NewProvider,
    Provider,
    ProviderChanged,
    ProviderPage,
    ProviderPatch,
    ProviderQuery,
)
from sluicegate.admin.providers.service import ProviderService


def router(service: ProviderService) -> APIRouter:
    """Return the endpoints over `service`."""
    routes = APIRouter(prefix="/providers", tags=["providers"])

    @routes.post("", operation_id="createProvider", status_code=201, responses=CONFLICT)
    async def create(body: NewProvider, caller: ByCaller, response: Response) -> ProviderChanged:
        """Make a provider."""
        changed = await service.create(body, caller)
        record = Provider.model_validate(changed.row)
        shown(record, response)
        return with_propagation(ProviderChanged, record, changed.propagation)

    @routes.get("", operation_id="listProviders")
    async def page(query: Annotated[ProviderQuery, Query()]) -> ProviderPage:
        """List providers, oldest first."""
        rows, has_more = cut(await service.page(query), query.limit)
        return ProviderPage(data=[Provider.model_validate(row) for row in rows], next=rows[-1].id if has_more else None)

    @routes.get("/{provider_id}", operation_id="getProvider", responses=NOT_FOUND)
    async def get(provider_id: str, response: Response) -> Provider:
        """Show a provider."""
        record = Provider.model_validate(await service.get(provider_id))
        shown(record, response)
        return record

    @routes.patch("/{provider_id}", operation_id="updateProvider", responses=NOT_FOUND | CONFLICT)
    async def update(
        provider_id: str, body: ProviderPatch, caller: ByCaller, version: ExpectedVersion, response: Response
    ) -> ProviderChanged:
        """Change a provider. A null `api_key` takes the credential away."""
        changed = await service.update(provider_id, body, caller, version)
        record = Provider.model_validate(changed.row)
        shown(record, response)
        return with_propagation(ProviderChanged, record, changed.propagation)

    @routes.delete("/{provider_id}", operation_id="deleteProvider", responses=NOT_FOUND | CONFLICT)
    async def delete(provider_id: str, caller: ByCaller, version: ExpectedVersion, cascade: Cascade = False) -> Deleted:
        """Delete a provider. Refused while it has models, unless `cascade`: then they go."""
        changed = await service.delete(provider_id, caller, version, cascade=cascade)
        return Deleted(id=provider_id, deleted_records=changed.row, **dict(changed.propagation))

    return routes
