"""Who may call: the bootstrap token, checked before a byte of the request's body is read.

A plain ASGI middleware, because FastAPI parses the body before its dependencies run. It guards all of
/api and bounds the body's size.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Request, Security
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluicegate.admin.errors import AdminError, UnauthenticatedError

MAX_BODY_BYTES: Final = 1024 * 1024
GUARDED_PATH: Final = "/api"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a change, for the audit."""

    actor: str
    address: str | None


class BodyTooLargeError(AdminError):
    """More bytes than any request needs."""

    status = 413
    code = "request_too_large"


class Guard:
    """Lets a request for /api through if it carries the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token_digest = _digest(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_guarded(scope["path"]):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(Headers(scope=scope))
        if refusal is not None:
            await refusal_response(refusal)(scope, receive, send)
            return
        client = scope.get("client")
        scope.setdefault("state", {})["caller"] = Caller(actor="bootstrap", address=client[0] if client else None)
        await self._app(scope, _bounded(receive), send)

    def _refusal(self, headers: Headers) -> AdminError | None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return UnauthenticatedError(
                "No token was sent.",
                "Send `Authorization: Bearer <token>`; the token is SLUICEGATE_ADMIN_BOOTSTRAP_TOKEN of the server.",
            )
        # Digests have one length, so the comparison tells nothing about the token's.
        if not hmac.compare_digest(_digest(token.strip().encode("latin-1")), self._token_digest):
            return UnauthenticatedError(
                "The token is not valid.", "Use the value of SLUICEGATE_ADMIN_BOOTSTRAP_TOKEN of the server."
            )
        if int(headers.get("content-length", "0") or 0) > MAX_BODY_BYTES:
            return _too_large()
        return None


def caller_of(request: Request) -> Caller:
    """Return who called; the guard has put it there."""
    caller: Caller = request.state.caller
    return caller


def refusal_response(error: AdminError) -> JSONResponse:
    """Return the answer for a refusal."""
    headers = {"cache-control": "no-store"}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status == 503:
        headers["retry-after"] = "1"
    return JSONResponse(error.answer().model_dump(mode="json"), status_code=error.status, headers=headers)


# For the OpenAPI document only; the guard has decided long before.
described_in_openapi: Final = Security(
    HTTPBearer(auto_error=False, description="The bootstrap token.", scheme_name="bearer")
)
ByCaller = Annotated[Caller, Security(caller_of)]


def _is_guarded(path: str) -> bool:
    return path == GUARDED_PATH or path.startswith(f"{GUARDED_PATH}/")


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _too_large() -> BodyTooLargeError:
    return BodyTooLargeError(f"The body is larger than {MAX_BODY_BYTES} bytes.", "Send a smaller request.")


def _bounded(receive: Receive) -> Receive:
    left_bytes = MAX_BODY_BYTES

    async def receive_bounded() -> Message:
        nonlocal left_bytes
        message = await receive()
        if message["type"] == "http.request":
            left_bytes -= len(message.get("body", b""))
            if left_bytes < 0:
                raise _too_large()
        return message

    return receive_bounded
