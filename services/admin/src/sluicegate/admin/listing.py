"""Lists: pages of records in the order they were made, with a cursor that survives changes in between."""

from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from sluicegate.admin.fields import RecordId

MAX_LIMIT: Final = 500

T = TypeVar("T")

Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]


class ListQuery(BaseModel):
    """The query parameters of every list."""

    model_config = ConfigDict(extra="forbid")

    limit: Limit = Field(default=100, description="Records per page.")
    cursor: RecordId | None = Field(default=None, description="`next` of the page before.")


def cut(rows: list[T], limit: int) -> tuple[list[T], bool]:
    """Return one page out of `limit` + 1 rows, and whether more follow."""
    return rows[:limit], len(rows) > limit
