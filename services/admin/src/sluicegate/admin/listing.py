"""Lists: pages of records in the order they were made, with a cursor that survives changes in between."""

from typing import Annotated, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from sluicegate.admin.fields import RecordId
from sluicegate.contracts.ids import ID_PATTERN, IdPrefix

MAX_LIMIT: Final = 500

T = TypeVar("T")

Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]


class ListQuery(BaseModel):
    """The query parameters of every list."""

    model_config = ConfigDict(extra="forbid")

    id_prefix: ClassVar[IdPrefix]

    limit: Limit = Field(default=100, description="Records per page.")
    cursor: RecordId | None = Field(default=None, description="`next` of the page before.")

    @field_validator("cursor")
    @classmethod
    def _is_of_this_list(cls, cursor: str | None) -> str | None:
        if cursor is not None and not (ID_PATTERN.fullmatch(cursor) and cursor.startswith(f"{cls.id_prefix}_")):
            raise ValueError("must be the `next` of a page of this list")
        return cursor


def cut(rows: list[T], limit: int) -> tuple[list[T], bool]:
    """Return one page out of `limit` + 1 rows, and whether more follow."""
    return rows[:limit], len(rows) > limit
