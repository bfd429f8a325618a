"""The API as an ASGI app: nouns under /api, one shape of refusal, the guard in front."""

import re
from collections.abc import Sequence
from typing import Any, Final

import asyncpg
from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from sluicegate.admin.access import Guard, described_in_openapi, refusal_response
from sluicegate.admin.answers import REFUSALS
from sluicegate.admin.errors import AdminError, UnavailableError
from sluicegate.runtime.logs import get_logger
from sluicegate.store.transactions import is_unavailable

_ABOUT: Final = """\
Configuration of the gateway: who may call (tenants, departments, teams, keys) and what (providers, models, routes),
how much (limits of each of them, budgets), and who hears of it (webhooks; alerts and their deliveries).

A change is saved, audited and pushed to every edge. Its answer says in `propagated` whether every live edge
has applied it. Names may be in any script and unique names are unique within their parent. Money is decimal
strings, times are RFC 3339. Lists are paged by `cursor`. To change exactly what you read, send its `ETag` as
`If-Match`.
"""
# How pydantic calls what is no JSON object where one is expected.
_NOT_AN_OBJECT: Final = "model_attributes_type"
_log = get_logger(__name__)


class _NoSuchPathError(AdminError):
    status = 404
    code = "no_such_path"


class _NotAllowedError(AdminError):
    status = 405
    code = "method_not_allowed"


class _NotJsonError(AdminError):
    status = 400
    code = "invalid_json"


class _FieldsError(AdminError):
    status = 422
    code = "invalid_request"


def build(routers: Sequence[APIRouter], token: str) -> ASGIApp:
    """Return the app, guarded by `token`."""
    return Guard(build_unguarded(routers), token)


def build_unguarded(routers: Sequence[APIRouter]) -> FastAPI:
    """Return the FastAPI app without the guard."""
    # No interactive pages: they load their scripts from a foreign host.
    app = FastAPI(
        title="Sluicegate admin API",
        version="1",
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        responses=REFUSALS,
        dependencies=[described_in_openapi, Depends(_refuse_unknown_parameters)],
        separate_input_output_schemas=False,
    )
    for router in routers:
        app.include_router(router, prefix="/api")
    app.add_exception_handler(AdminError, _on_refusal)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(asyncpg.CharacterNotInRepertoireError, _on_data_error)
    # Each by name: what only `Exception` catches is raised again by starlette, for the server's log.
    for kind in (Exception, OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        app.add_exception_handler(kind, _on_fault)
    return app


async def _refuse_unknown_parameters(request: Request) -> None:
    """Refuse query parameters that the operation does not have: who misspells one believes that it works."""
    if not request.query_params:
        return
    known = _query_parameters(request.app.openapi(), request.scope["route"].operation_id)
    if unknown := [name for name in dict.fromkeys(request.query_params) if name not in known]:
        fields = tuple((name, "There is no such query parameter") for name in unknown)
        named = "; ".join(f"{field}: {message}" for field, message in fields[:5])
        raise _FieldsError(named, "Leave it out, or see /openapi.json for its name.", fields=fields)


async def _on_refusal(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AdminError)
    return refusal_response(error)


async def _on_validation_error(_request: Request, error: Exception) -> JSONResponse:
    """Name the fields. What was sent is not repeated: it may be a secret."""
    assert isinstance(error, RequestValidationError)
    details = error.errors()
    if any(detail["type"] == "json_invalid" for detail in details):
        return refusal_response(_NotJsonError("The body is not JSON.", "Send one JSON object in UTF-8."))
    if any(detail["loc"] == ("body",) and detail["type"] == _NOT_AN_OBJECT for detail in details):
        # Also what comes of another content type, such as that of `curl -d` on its own.
        advice = "Send one JSON object with `content-type: application/json`."
        return refusal_response(_NotJsonError("The body is not a JSON object.", advice))
    fields = tuple((_path(detail["loc"]), _message(detail)) for detail in details)
    named = "; ".join(f"{field}: {message}" for field, message in fields[:5])
    return refusal_response(_FieldsError(named, "Correct these fields and send the request again.", fields=fields))


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, AdminError):  # raised while the body was read
        return refusal_response(error.__cause__)
    if error.status_code == 404:
        return refusal_response(_NoSuchPathError("There is no such path.", "See /openapi.json."))
    if error.status_code == 405:
        answer = refusal_response(_NotAllowedError("The path does not have this method.", "See `allow`."))
        answer.headers["allow"] = _methods(request)
        return answer
    return refusal_response(_NotJsonError(str(error.detail), "Send one JSON object in UTF-8."))


async def _on_data_error(_request: Request, error: Exception) -> JSONResponse:
    """Refuse text that PostgreSQL cannot hold, wherever in the request it was: NUL, for one."""
    _log.info("text refused by the database", error=str(error))
    return refusal_response(
        _FieldsError("The request holds a character that cannot be stored.", "Send text without NUL characters.")
    )


async def _on_fault(_request: Request, error: Exception) -> JSONResponse:
    if is_unavailable(error):
        _log.warning("database is away", error=str(error) or type(error).__name__)
        return refusal_response(
            UnavailableError(
                "The database does not answer, or is not set up.",
                "Try again; if a change was sent, look first whether it was saved. "
                "A new database needs `sluicegate migrate`.",
            )
        )
    _log.error("request failed", exc_info=error)
    return refusal_response(AdminError("The server has a fault.", "See its log; report it if it stays."))


def _query_parameters(document: dict[str, Any], operation_id: str) -> set[str]:
    """Return the names of an operation's query parameters."""
    operations = (operation for item in document["paths"].values() for operation in item.values())
    operation = next(operation for operation in operations if operation["operationId"] == operation_id)
    return {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"}


def _methods(request: Request) -> str:
    """Return the methods of a path; each of them is a route of its own, so starlette's answer names only one."""
    document = request.app.openapi()["paths"]
    path = request.url.path
    for template, operations in document.items():
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path):
            return ", ".join(sorted(method.upper() for method in operations))
    return ""


def _path(place: Sequence[str | int]) -> str:
    """Return the path of a field; the first part says where in the request it was."""
    return ".".join(map(str, place[1:] if len(place) > 1 else place))


def _message(detail: dict[str, str]) -> str:
    if detail["type"] == "extra_forbidden":
        return "There is no such field"
    if detail["type"] == _NOT_AN_OBJECT:
        return "must be an object"
    return detail["msg"].removeprefix("Value error, ")
