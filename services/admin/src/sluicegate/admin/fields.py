"""Kinds of field that the request and answer models of several nouns share. Nothing here knows a noun."""

import re
import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# Python's own parser takes all of ISO 8601, such as weeks. PostgreSQL reads the last and first moments as infinity.
_RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_LAST_YEAR: Final = 9998
# Line breaks, and marks that turn the direction of text around: a name must look like what it is.
_FORBIDDEN: Final = frozenset("\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
MAX_NAME_LENGTH: Final = 200


class Request(BaseModel):
    """A request body: no field that we do not know, no type that only looks right."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Answer(BaseModel):
    """An answer's body."""

    model_config = ConfigDict(from_attributes=True)


def unchanged() -> Any:
    """Stand in for a field that a PATCH does not name. Never looked at: see `changes_of`."""
    return None


def changes_of(patch: Request) -> dict[str, Any]:
    """Return the fields that a PATCH names; null is a value, absence is none."""
    return {name: getattr(patch, name) for name in patch.model_fields_set}


def snapshot(kind: type["Recorded"], row: object) -> dict[str, Any]:
    """Return a row as the API shows it, for the audit."""
    return kind.model_validate(row).model_dump(mode="json")


def is_printable(character: str) -> bool:
    """Tell whether a character may stand in a name."""
    return unicodedata.category(character) not in {"Cc", "Cs"} and character not in _FORBIDDEN


def normal_text(value: str) -> str:
    """Return `value` in Unicode's NFC, without space at its ends; raise ValueError for what no name may hold."""
    text = unicodedata.normalize("NFC", value.strip())
    if not text:
        raise ValueError("must not be empty")
    if not all(map(is_printable, text)):
        raise ValueError("must not hold control characters, line breaks or direction marks")
    if len(text) > MAX_NAME_LENGTH:
        raise ValueError(f"must not be longer than {MAX_NAME_LENGTH} characters")
    return text


def exact_text(value: str) -> str:
    """Return `value` as it is, if it could be a name; for what other systems compare byte by byte."""
    if value != value.strip():
        raise ValueError("must not begin or end with space")
    normal_text(value)
    return value


def _parse_time(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("must be an RFC 3339 time such as 2027-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("must say its time zone, for example by a Z at the end")
    if not _RFC_3339.fullmatch(value):
        raise ValueError("must be an RFC 3339 time such as 2027-01-31T12:00:00Z")
    if not _EPOCH.year <= moment.year <= _LAST_YEAR or (moment := moment.astimezone(UTC)) < _EPOCH:
        raise ValueError(f"must be from {_EPOCH.year} to {_LAST_YEAR}")
    return moment


def time_text(moment: datetime) -> str:
    """Return a time as RFC 3339 in UTC, such as `2027-01-31T12:00:00Z`."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def to_us(moment: datetime) -> int:
    """Return µs since the Unix epoch, exactly."""
    return (moment - _EPOCH) // _MICROSECOND


Name = Annotated[
    str,
    Field(min_length=1, max_length=MAX_NAME_LENGTH, description="A name for people, in any script."),
    AfterValidator(normal_text),
]
ExactName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH), AfterValidator(exact_text)]
RecordId = Annotated[str, Field(min_length=1, max_length=64)]
Time = Annotated[
    datetime,
    BeforeValidator(_parse_time),
    PlainSerializer(time_text, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2027-01-31T12:00:00Z"]}),
]
Enabled = Annotated[bool, Field(description="False refuses all requests that depend on it, at once.")]


class Recorded(Answer):
    """What every record's answer holds."""

    id: str
    enabled: Enabled
    version: int = Field(description="Counts the changes; send it as `If-Match` to change exactly what you read.")
    created_at: Time
    updated_at: Time
