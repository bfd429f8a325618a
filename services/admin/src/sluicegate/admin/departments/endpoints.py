"""`/api/departments`."""

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
from sluicegate.admin.departments.schemas import (
    Department,
    DepartmentChanged,
    DepartmentPage,
    DepartmentPatch,
    DepartmentQuery,
    NewDepartment,
)
from sluicegate.admin.departments.service import DepartmentService
from sluicegate.admin.listing import cut


def router(service: DepartmentService) -> APIRouter:
    """Return the endpoints over `service`."""
    routes = APIRouter(prefix="/departments", tags=["departments"])

    @routes.post("", operation_id="createDepartment", status_code=201, responses=CONFLICT)
    async def create(body: NewDepartment, caller: ByCaller, response: Response) -> DepartmentChanged:
        """Make a department."""
        changed = await service.create(body, caller)
        record = Department.model_validate(changed.row)
        shown(record, response)
        return with_propagation(DepartmentChanged, record, changed.propagation)

    @routes.get("", operation_id="listDepartments")
    async def page(query: Annotated[DepartmentQuery, Query()]) -> DepartmentPage:
        """List departments, oldest first."""
        rows, has_more = cut(await service.page(query), query.limit)
        return DepartmentPage(
            data=[Department.model_validate(row) for row in rows], next=rows[-1].id if has_more else None
        )

    @routes.get("/{department_id}", operation_id="getDepartment", responses=NOT_FOUND)
    async def get(department_id: str, response: Response) -> Department:
        """Show a department."""
        record = Department.model_validate(await service.get(department_id))
        shown(record, response)
        return record

    @routes.patch("/{department_id}", operation_id="updateDepartment", responses=NOT_FOUND | CONFLICT)
    async def update(
        department_id: str, body: DepartmentPatch, caller: ByCaller, version: ExpectedVersion, response: Response
    ) -> DepartmentChanged:
        """Change a department. Disabling it refuses all requests of its keys."""
        changed = await service.update(department_id, body, caller, version)
        record = Department.model_validate(changed.row)
        shown(record, response)
        return with_propagation(DepartmentChanged, record, changed.propagation)

    @routes.delete("/{department_id}", operation_id="deleteDepartment", responses=NOT_FOUND | CONFLICT)
    async def delete(
        department_id: str, caller: ByCaller, version: ExpectedVersion, cascade: Cascade = False
    ) -> Deleted:
        """Delete a department. Refused while it has teams, unless `cascade`: then they and their keys go."""
        changed = await service.delete(department_id, caller, version, cascade=cascade)
        return Deleted(id=department_id, deleted_records=changed.row, **dict(changed.propagation))

    return routes
