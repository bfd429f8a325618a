"""`/api/models`."""

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
from sluicegate.admin.models.schemas import Model, ModelChanged, ModelPage, ModelPatch, ModelQuery, NewModel
from sluicegate.admin.models.service import ModelService


def router(service: ModelService) -> APIRouter:
    """Return the endpoints over `service`."""
    routes = APIRouter(prefix="/models", tags=["models"])

    @routes.post("", operation_id="createModel", status_code=201, responses=CONFLICT)
    async def create(body: NewModel, caller: ByCaller, response: Response) -> ModelChanged:
        """Make a model."""
        changed = await service.create(body, caller)
        record = Model.model_validate(changed.row)
        shown(record, response)
        return with_propagation(ModelChanged, record, changed.propagation)

    @routes.get("", operation_id="listModels")
    async def page(query: Annotated[ModelQuery, Query()]) -> ModelPage:
        """List models, oldest first."""
        rows, has_more = cut(await service.page(query), query.limit)
        return ModelPage(data=[Model.model_validate(row) for row in rows], next=rows[-1].id if has_more else None)

    @routes.get("/{model_id}", operation_id="getModel", responses=NOT_FOUND)
    async def get(model_id: str, response: Response) -> Model:
        """Show a model."""
        record = Model.model_validate(await service.get(model_id))
        shown(record, response)
        return record

    @routes.patch("/{model_id}", operation_id="updateModel", responses=NOT_FOUND | CONFLICT)
    async def update(
        model_id: str, body: ModelPatch, caller: ByCaller, version: ExpectedVersion, response: Response
    ) -> ModelChanged:
        """Change a model. `prices`, if named, replaces the whole list."""
        changed = await service.update(model_id, body, caller, version)
        record = Model.model_validate(changed.row)
        shown(record, response)
        return with_propagation(ModelChanged, record, changed.propagation)

    @routes.delete("/{model_id}", operation_id="deleteModel", responses=NOT_FOUND | CONFLICT)
    async def delete(model_id: str, caller: ByCaller, version: ExpectedVersion) -> Deleted:
        """Delete a model. Refused while a route leads to it."""
        changed = await service.delete(model_id, caller, version)
        return Deleted(id=model_id, deleted_records=changed.row, **dict(changed.propagation))

    return routes
