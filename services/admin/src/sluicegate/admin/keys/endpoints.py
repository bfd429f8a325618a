"""`/api/keys`."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from sluicegate.admin.access import ByCaller
from sluicegate.admin.answers import CONFLICT, NOT_FOUND, Deleted, ExpectedVersion, shown, with_propagation
from sluicegate.admin.keys.schemas import Key, KeyChanged, KeyCreated, KeyPage, KeyPatch, KeyQuery, NewKey
from sluicegate.admin.keys.service import KeyService
from sluicegate.admin.listing import cut


def router(service: KeyService) -> APIRouter:
    """Return the endpoints over `service`."""
    routes = APIRouter(prefix="/keys", tags=["keys"])

    @routes.post("", operation_id="createKey", status_code=201)
    async def create(body: NewKey, caller: ByCaller, response: Response) -> KeyCreated:
        """Make a key. The answer holds its text: the only time it is shown."""
        changed = await service.create(body, caller)
        record = Key.model_validate(changed.row.row)
        shown(record, response)
        return with_propagation(KeyCreated, record, changed.propagation, key=changed.row.text)

    @routes.get("", operation_id="listKeys")
    async def page(query: Annotated[KeyQuery, Query()]) -> KeyPage:
        """List keys, oldest first; deleted ones are left out."""
        rows, has_more = cut(await service.page(query), query.limit)
        return KeyPage(data=[Key.model_validate(row) for row in rows], next=rows[-1].id if has_more else None)

    @routes.get("/{key_id}", operation_id="getKey", responses=NOT_FOUND)
    async def get(key_id: str, response: Response) -> Key:
        """Show a key."""
        record = Key.model_validate(await service.get(key_id))
        shown(record, response)
        return record

    @routes.patch("/{key_id}", operation_id="updateKey", responses=NOT_FOUND | CONFLICT)
    async def update(
        key_id: str, body: KeyPatch, caller: ByCaller, version: ExpectedVersion, response: Response
    ) -> KeyChanged:
        """Change a key. A revoked key stays as it is."""
        changed = await service.update(key_id, body, caller, version)
        record = Key.model_validate(changed.row)
        shown(record, response)
        return with_propagation(KeyChanged, record, changed.propagation)

    @routes.post("/{key_id}/revoke", operation_id="revokeKey", responses=NOT_FOUND | CONFLICT)
    async def revoke(key_id: str, caller: ByCaller, version: ExpectedVersion, response: Response) -> KeyChanged:
        """Refuse a key for good. Doing it twice is fine; `propagated: false` is a reason to."""
        changed = await service.revoke(key_id, caller, version)
        record = Key.model_validate(changed.row)
        shown(record, response)
        return with_propagation(KeyChanged, record, changed.propagation)

    @routes.delete("/{key_id}", operation_id="deleteKey", responses=NOT_FOUND | CONFLICT)
    async def delete(key_id: str, caller: ByCaller, version: ExpectedVersion) -> Deleted:
        """Revoke a key and take it out of the lists. For 30 days its use is refused as `key_revoked`."""
        changed = await service.delete(key_id, caller, version)
        return Deleted(id=key_id, deleted_records=changed.row, **dict(changed.propagation))

    return routes
