"""What the edge answers instead of an answer: refusals, with code, status and advice, in either dialect.

Codes and their statuses are data in `sluicegate.contracts.errors`; this file only says how they are written.
"""

import json
from typing import Final, Literal

from sluicegate.contracts.errors import BY_CODE

Dialect = Literal["openai", "anthropic"]

_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class EdgeError(Exception):
    """The root of the edge's own errors."""


class Refusal(EdgeError):
    """A request that is answered with an error. `param` names the field of the request that is wrong.

    `closes`: the connection cannot go on, because where the next request starts is not known. `should_retry`: what
    OpenAI's SDKs do at once, whatever the status suggests; None: as they see fit.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        closes: bool = False,
        allow: str | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        row = BY_CODE[code]
        self.code = code
        self.status = row.status
        self.type = row.type
        self.message = message
        self.param = param
        self.retry_after_s = 1 if retry_after_s is None and row.status == 503 else retry_after_s
        self.closes = closes
        self.allow = allow
        self.should_retry = should_retry

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that only errors have."""
        headers: list[tuple[bytes, bytes]] = []
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.allow is not None:
            headers.append((b"allow", self.allow.encode()))
        if self.should_retry is not None:
            headers.append((b"x-should-retry", b"true" if self.should_retry else b"false"))
        return headers

    def body(self, dialect: Dialect, request_id: str) -> bytes:
        """Return the error as JSON, in ASCII, in the client's dialect."""
        return error_body(dialect, request_id, code=self.code, type_=self.type, message=self.message, param=self.param)


def error_body(
    dialect: Dialect, request_id: str, *, code: str, type_: str, message: str, param: str | None = None
) -> bytes:
    """Return an error document. ASCII, so that no odd line end can hide in a frame."""
    document: dict[str, object]
    if dialect == "anthropic":
        anthropic_type = _ANTHROPIC_TYPES.get(BY_CODE[code].status, "api_error")
        error: dict[str, object] = {"type": anthropic_type, "message": message, "code": code}
        document = {"type": "error", "error": error, "request_id": request_id}
    else:
        error = {"message": message, "type": type_, "code": code, "param": param, "request_id": request_id}
        document = {"error": error}
    return json.dumps(document, separators=(",", ":")).encode("ascii")
