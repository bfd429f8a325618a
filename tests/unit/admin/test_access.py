"""The guard: who gets in, what is bounded, what is open."""

from collections.abc import AsyncIterator

import httpx2
import pytest
from fastapi import APIRouter
from pydantic import BaseModel

from sluicegate.admin import application
from sluicegate.admin.access import MAX_BODY_BYTES, ByCaller

TOKEN = "correct-horse-battery-staple-0123456789"


class Body(BaseModel):
    text: str


def client(address: tuple[str, int] = ("10.1.2.3", 1)) -> httpx2.AsyncClient:
    router = APIRouter()

    @router.post("/things")
    async def things(body: Body, caller: ByCaller) -> list[str | None]:
        return [body.text[:10], caller.actor, caller.address]

    @router.get("/things")
    async def nothing() -> None:
        pass

    app = application.build([router], TOKEN)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app, client=address), base_url="http://admin")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_request_passes_with_the_token() -> None:
    async with client() as http:
        answer = await http.post("/api/things", json={"text": "x"}, headers=bearer(TOKEN))
    assert (answer.status_code, answer.json()) == (200, ["x", "bootstrap", "10.1.2.3"])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(TOKEN + "x"),
        bearer(TOKEN[:-1]),
        bearer(""),
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"x-api-key": TOKEN},
        {"authorization": "Bearer \xff\xfe"},
    ],
)
async def test_request_is_refused_without_the_token(headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    async with client() as http:
        answer = await http.post("/api/things", json={"text": "x"}, headers=raw)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "unauthenticated"
    assert answer.json()["error"]["advice"]


async def test_refusal_comes_before_the_body_is_looked_at() -> None:
    async with client() as http:
        answer = await http.post("/api/things", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 401


async def test_refusal_comes_before_it_is_known_whether_the_path_exists() -> None:
    async with client() as http:
        assert (await http.get("/api/nothing")).status_code == 401
        assert (await http.get("/api/nothing", headers=bearer(TOKEN))).json()["error"]["code"] == "no_such_path"


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_body_is_refused_when_it_is_too_large(is_chunked: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b" " * (MAX_BODY_BYTES // 8)

    content = chunks() if is_chunked else b" " * (MAX_BODY_BYTES + 1)
    async with client() as http:
        answer = await http.post(
            "/api/things", content=content, headers=bearer(TOKEN) | {"content-type": "application/json"}
        )
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"\xff", 400, "invalid_json"),
        (b"", 422, "invalid_request"),
        (b"[]", 400, "invalid_json"),
        (b'{"text": 1}', 422, "invalid_request"),
        (b"[" * 100_000, 400, "invalid_json"),
    ],
)
async def test_body_is_refused_in_one_shape(content: bytes, status: int, code: str) -> None:
    async with client() as http:
        answer = await http.post(
            "/api/things", content=content, headers=bearer(TOKEN) | {"content-type": "application/json"}
        )
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert error["message"]
    assert error["advice"]


async def test_body_of_another_content_type_is_told_which_to_send() -> None:
    """`curl -d` on its own sends a form."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with client() as http:
        answer = await http.post("/api/things", content=b'{"text": "a"}', headers=bearer(TOKEN) | form)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert "`content-type: application/json`" in answer.json()["error"]["advice"]


async def test_what_was_sent_is_not_repeated() -> None:
    async with client() as http:
        answer = await http.post("/api/things", json={"text": ["sk-secret"]}, headers=bearer(TOKEN))
    assert answer.status_code == 422
    assert "sk-secret" not in answer.text


async def test_wrong_method_is_refused_in_one_shape() -> None:
    async with client() as http:
        answer = await http.put("/api/things", headers=bearer(TOKEN))
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, POST"


async def test_openapi_document_is_open() -> None:
    async with client() as http:
        assert (await http.get("/openapi.json")).status_code == 200
