"""What endpoints share: documented refusals, versions as ETags, and the shape of a change's answer."""

import re
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Header, Query, Response
from pydantic import BaseModel, Field

from sluicegate.admin.changes.changes import Propagation
from sluicegate.admin.errors import ErrorAnswer, InvalidError
from sluicegate.admin.fields import Answer, Recorded

A = TypeVar("A", bound=BaseModel)

_ETAG: Final = re.compile(r'(?:W/)?"?(\d{1,9})"?')

Responses = dict[int | str, dict[str, Any]]


def _refusal(description: str) -> dict[str, Any]:
    return {"model": ErrorAnswer, "description": description}


REFUSALS: Final[Responses] = {
    400: _refusal("The body is not JSON."),
    401: _refusal("No token, or a wrong one."),
    413: _refusal("The body is too large."),
    422: _refusal("A field is unknown, missing or wrong; nothing was changed."),
    503: _refusal("The database is away; try again."),
}
NOT_FOUND: Final[Responses] = {404: _refusal("There is no such record.")}
CONFLICT: Final[Responses] = {409: _refusal("Not with the present state: name taken, still in use, or changed since.")}


class Removed(Answer):
    """What a deletion did."""

    id: str
    deleted_records: int = Field(description="How many records went, with those that belonged to it.")


class Deleted(Propagation, Removed):
    """What a deletion did, and how far it has come."""


def expected_version(
    if_match: Annotated[
        str | None,
        Header(description="Change only if the record is at this version (its ETag).", examples=['"3"']),
    ] = None,
) -> int | None:
    """Return the version that the caller read, None if any will do."""
    if if_match is None or if_match.strip() == "*":
        return None
    match = _ETAG.fullmatch(if_match.strip())
    if match is None:
        raise InvalidError("If-Match", 'must be one version such as "3"')
    return int(match[1])


ExpectedVersion = Annotated[int | None, Depends(expected_version)]
Cascade = Annotated[bool, Query(description="Delete what belongs to it as well, in the same transaction.")]


def shown(record: Recorded, response: Response) -> None:
    """Give an answer the version of the record it shows; nobody on the way may keep it."""
    response.headers["etag"] = f'"{record.version}"'
    response.headers["cache-control"] = "no-store"


def with_propagation(answer: type[A], record: Recorded, propagation: Propagation, **more: Any) -> A:
    """Return the answer to a change: the record and how far the change has come."""
    return answer.model_validate(dict(record) | dict(propagation) | more)
