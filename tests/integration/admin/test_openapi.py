"""The OpenAPI document: valid, complete, and true about what is refused."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.openapi.models import OpenAPI

from .conftest import Running

NOUNS = ("tenant", "department", "team", "key", "provider", "model", "route", "budget", "webhook")
METHODS = {"get", "post", "patch", "delete"}


@pytest.fixture
async def document(admin: Running) -> dict[str, Any]:
    answer = await admin.client.get("/openapi.json")
    found: dict[str, Any] = answer.json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for inner in node.values():
            yield from references(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from references(inner)


async def test_document_is_valid(document: dict[str, Any]) -> None:
    OpenAPI.model_validate(document)
    assert document["openapi"].startswith("3.1")
    names = {reference.removeprefix("#/components/schemas/") for reference in references(document)}
    assert names <= document["components"]["schemas"].keys()


async def test_every_noun_has_its_operations(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    expected = {f"{verb}{noun.capitalize()}" for noun in NOUNS for verb in ("create", "get", "update", "delete")}
    expected |= {f"list{noun.capitalize()}s" for noun in NOUNS} | {"revokeKey"}
    expected |= {"rotateWebhookSecret", "testWebhook", "replayDelivery"}
    expected |= {"listAlerts", "getAlert", "listDeliveries", "getDelivery"}
    assert sorted(ids) == sorted(expected)


async def test_every_operation_names_its_refusals_and_asks_for_the_token(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        assert operation["security"] == [{"bearer": []}], (path, method)
        for status in ("401", "422", "503"):
            schema = operation["responses"][status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}, (path, method, status)
        assert ("404" in operation["responses"]) == ("{" in path), (path, method)


async def test_every_request_body_is_closed(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for path, method, operation in operations(document):
        if "requestBody" in operation:
            reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            assert schemas[reference.rpartition("/")[2]]["additionalProperties"] is False, (path, method)


async def test_no_answer_but_the_first_holds_a_key_or_secret(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    with_key = {name for name, schema in schemas.items() if "key" in schema.get("properties", {})}
    assert with_key == {"KeyCreated"}
    with_secret = {name for name, schema in schemas.items() if "secret" in schema.get("properties", {})}
    assert with_secret == {"WebhookWithSecret"}
    with_api_key = {name for name, schema in schemas.items() if "api_key" in schema.get("properties", {})}
    assert with_api_key == {"NewProvider", "ProviderPatch"}
