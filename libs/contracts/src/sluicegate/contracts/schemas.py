"""JSON Schemas of the published events, and what may not happen to them. Development only.

Readers ignore fields they do not know, and writers leave defaults out; so the one change that breaks
nobody is a new field with a default. All else, a changed default included, needs a new version.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from sluicegate.contracts import facts, subjects, usage

JsonSchema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def event_type(event: subjects.Event) -> type[msgspec.Struct]:
    """Return the struct that an event of the table is."""
    for module in (usage, facts):
        if (found := getattr(module, event.type_name, None)) is not None:
            return found  # type: ignore[no-any-return]
    raise LookupError(event.type_name)


def event_schema(event: subjects.Event) -> JsonSchema:
    """Return the schema of one event of a message (a message is an array of them if `is_batch`)."""
    schema = {"$schema": DIALECT, "$id": f"urn:sluicegate:{event.schema}"} | msgspec.json.schema(event_type(event))
    # As JSON would give it back (a default of () as []), so that it compares with what is checked in.
    return msgspec.json.decode(msgspec.json.encode(schema), type=JsonSchema)


def breaks(published: JsonSchema, present: JsonSchema) -> Iterator[str]:
    """Yield what `present` does to readers and writers of `published`, one line each."""
    for name, old in published["$defs"].items():
        new = present["$defs"].get(name)
        if new is None:
            yield f"{name} is gone"
        else:
            yield from _breaks_of_object(name, old, new)


def _breaks_of_object(name: str, old: JsonSchema, new: JsonSchema) -> Iterator[str]:
    old_fields, new_fields = old.get("properties", {}), new.get("properties", {})
    old_required, new_required = set(old.get("required", ())), set(new.get("required", ()))
    for field, meaning in old_fields.items():
        if field not in new_fields:
            yield f"{name}.{field} was removed"
        elif meaning != new_fields[field]:
            yield f"{name}.{field} has another type or default"
    for field in sorted(new_required - old_required):
        yield f"{name}.{field} became required"
    for field in sorted((old_required - new_required) & new_fields.keys()):
        yield f"{name}.{field} is required no more, and published readers demand it"
