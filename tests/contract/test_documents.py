"""Generated pages and schemas: as they would be written now, and never breaking what is published."""

import copy
from pathlib import Path
from typing import Any

import pytest

from sluicegate.contracts import documents, errors, subjects
from sluicegate.contracts.asyncapi import asyncapi_document
from sluicegate.contracts.schemas import breaks, event_schema
from sluicegate.runtime import config_document

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = event_schema(next(event for event in subjects.EVENTS if event.type_name == "UsageRecorded"))


def changed() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a copy of the usage event's schema, and its object part to change."""
    schema = copy.deepcopy(PUBLISHED)
    return schema, schema["$defs"]["UsageRecorded"]


def test_generated_files_are_what_would_be_written_now() -> None:
    assert documents.stale_files(ROOT) == []


def test_published_schemas_are_not_broken() -> None:
    assert documents.broken_schemas(ROOT) == []


def test_settings_page_is_what_would_be_written_now() -> None:
    assert (ROOT / config_document.PAGE).read_text() == config_document.render(config_document.room_settings())


def test_nothing_breaks_when_a_field_with_a_default_is_added() -> None:
    schema, usage = changed()
    usage["properties"]["region"] = {"type": "string", "default": ""}
    assert list(breaks(PUBLISHED, schema)) == []


def test_schema_breaks_when_a_field_is_removed() -> None:
    schema, usage = changed()
    del usage["properties"]["rule"]
    assert list(breaks(PUBLISHED, schema)) == ["UsageRecorded.rule was removed"]


def test_schema_breaks_when_a_field_becomes_required() -> None:
    schema, usage = changed()
    usage["required"].append("rule")
    assert list(breaks(PUBLISHED, schema)) == ["UsageRecorded.rule became required"]


def test_schema_breaks_when_a_new_field_is_required() -> None:
    schema, usage = changed()
    usage["properties"]["region"] = {"type": "string"}
    usage["required"].append("region")
    assert list(breaks(PUBLISHED, schema)) == ["UsageRecorded.region became required"]


def test_schema_breaks_when_a_required_field_is_optional() -> None:
    schema, usage = changed()
    usage["required"].remove("key")
    assert len(list(breaks(PUBLISHED, schema))) == 1


@pytest.mark.parametrize(
    ("field", "meaning"),
    [("status", {"type": "string"}), ("count", {"type": "integer", "default": 0}), ("outcome", {"enum": ["success"]})],
)
def test_schema_breaks_when_a_type_or_default_changes(field: str, meaning: dict[str, Any]) -> None:
    schema, usage = changed()
    usage["properties"][field] = meaning
    assert list(breaks(PUBLISHED, schema)) == [f"UsageRecorded.{field} has another type or default"]


def test_schema_breaks_when_a_nested_type_does() -> None:
    schema, _ = changed()
    del schema["$defs"]["Attempt"]["properties"]["provider"]
    assert list(breaks(PUBLISHED, schema)) == ["Attempt.provider was removed"]


def test_schema_breaks_when_an_event_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / documents.SCHEMAS
    folder.mkdir(parents=True)
    (folder / "request.forgotten.v1.json").write_text("{}")
    assert documents.broken_schemas(tmp_path) == ["request.forgotten.v1 is gone from the event table"]


def references(node: Any) -> list[str]:
    """Return all `$ref`s of a JSON document."""
    if isinstance(node, dict):
        own = [node["$ref"]] if "$ref" in node else []
        return own + [found for value in node.values() for found in references(value)]
    return [found for value in node for found in references(value)] if isinstance(node, list) else []


def test_asyncapi_references_all_resolve() -> None:
    document = asyncapi_document()
    found = references(document)
    assert len(found) > 20
    for reference in found:
        node: Any = document
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]


def test_asyncapi_names_every_subject() -> None:
    addresses = {channel["address"] for channel in asyncapi_document()["channels"].values()}
    assert {event.subject.replace("<", "{").replace(">", "}") for event in subjects.EVENTS} < addresses


def test_error_codes_are_unique_and_have_a_status() -> None:
    assert len(errors.BY_CODE) == len(errors.ERROR_CODES)
    assert all(row.status == 200 or 400 <= row.status < 600 for row in errors.ERROR_CODES)
