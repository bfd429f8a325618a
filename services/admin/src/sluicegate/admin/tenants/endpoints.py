"""`/api/tenants`."""

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
from sluicegate.admin.tenants.schemas import NewTenant, Tenant, TenantChanged, TenantPage, TenantPatch, TenantQuery
from sluicegate.admin.tenants.service import TenantService


def router(service: TenantService) -> APIRouter:
    """Return the endpoints over `service`."""
    routes = APIRouter(prefix="/tenants", tags=["tenants"])

    @routes.post("", operation_id="createTenant", status_code=201, responses=CONFLICT)
    async def create(body: NewTenant, caller: ByCaller, response: Response) -> TenantChanged:
        """Make a tenant."""
        changed = await service.create(body, caller)
        record = Tenant.model_validate(changed.row)
        shown(record, response)
        return with_propagation(TenantChanged, record, changed.propagation)

    @routes.get("", operation_id="listTenants")
    async def page(query: Annotated[TenantQuery, Query()]) -> TenantPage:
        """List tenants, oldest first."""
        rows, has_more = cut(await service.page(query), query.limit)
        return TenantPage(data=[Tenant.model_validate(row) for row in rows], next=rows[-1].id if has_more else None)

    @routes.get("/{tenant_id}", operation_id="getTenant", responses=NOT_FOUND)
    async def get(tenant_id: str, response: Response) -> Tenant:
        """Show a tenant."""
        record = Tenant.model_validate(await service.get(tenant_id))
        shown(record, response)
        return record

    @routes.patch("/{tenant_id}", operation_id="updateTenant", responses=NOT_FOUND | CONFLICT)
    async def update(
        tenant_id: str, body: TenantPatch, caller: ByCaller, version: ExpectedVersion, response: Response
    ) -> TenantChanged:
        """Change a tenant. Disabling it refuses all requests of its keys."""
        changed = await service.update(tenant_id, body, caller, version)
        record = Tenant.model_validate(changed.row)
        shown(record, response)
        return with_propagation(TenantChanged, record, changed.propagation)

    @routes.delete("/{tenant_id}", operation_id="deleteTenant", responses=NOT_FOUND | CONFLICT)
    async def delete(tenant_id: str, caller: ByCaller, version: ExpectedVersion, cascade: Cascade = False) -> Deleted:
        """Delete a tenant. Refused while anything belongs to it, unless `cascade`: then all of it goes."""
        changed = await service.delete(tenant_id, caller, version, cascade=cascade)
        return Deleted(id=tenant_id, deleted_records=changed.row, **dict(changed.propagation))

    return routes
