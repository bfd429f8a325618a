"""Limits as requests state them, as answers show them and as columns hold them: the same on every noun."""

from typing import Annotated, Any, Final

import asyncpg
import msgspec
from pydantic import Field

from sluicegate.admin.fields import Answer, Request
from sluicegate.contracts import catalogue

# No gateway comes near it, and sums of such numbers stay exact wherever doubles count them.
MAX_LIMIT: Final = 10**12
_DECODER: Final = msgspec.json.Decoder(catalogue.Limits)

Limit = Annotated[int | None, Field(ge=0, le=MAX_LIMIT)]


class WantedLimits(Request):
    """Limits to be set. One that is not named: none on a new record, unchanged in a PATCH. Null: none. 0 blocks."""

    requests_per_minute: Limit = Field(default=None, examples=[600], description="In any sixty seconds.")
    tokens_per_minute: Limit = Field(
        default=None,
        examples=[200_000],
        description="Input and output, in any sixty seconds; reserved before a request, corrected after it.",
    )
    open_requests: Limit = Field(default=None, examples=[50], description="At the same time.")


class Limits(Answer):
    """The limits of a record. Null: none. 0 lets nothing pass."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    open_requests: int | None


NO_LIMITS: Final = WantedLimits()


def over(present: catalogue.Limits, wanted: WantedLimits) -> catalogue.Limits:
    """Return `present` with what `wanted` names laid over it."""
    named = {name: getattr(wanted, name) for name in wanted.model_fields_set}
    return msgspec.structs.replace(present, **named)


def new(wanted: WantedLimits) -> catalogue.Limits:
    """Return the limits of a new record."""
    return over(catalogue.Limits(), wanted)


def laid_over(row: object, named: dict[str, Any]) -> dict[str, Any]:
    """Return the changes that a PATCH names; where they are limits, together with those of `row` that stay."""
    return {
        name: over(getattr(row, name), value) if isinstance(value, WantedLimits) else value
        for name, value in named.items()
    }


def column(limits: catalogue.Limits) -> str:
    """Return limits as a column holds them."""
    return msgspec.json.encode(limits).decode()


def decoded(text: str) -> catalogue.Limits:
    """Return the limits that a column holds."""
    return _DECODER.decode(text)


def loaded(record: asyncpg.Record) -> dict[str, Any]:
    """Return a row's values with its limits decoded."""
    return {name: decoded(value) if name.endswith("limits") else value for name, value in record.items()}
