"""Error codes as data: what a client sees, with which status, and what it can do."""

from typing import Final

import msgspec


class ErrorCode(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the error table. `type` is OpenAI's `error.type`; `advice` goes into docs/errors.md."""

    code: str
    status: int
    type: str
    meaning: str
    advice: str


def _code(code: str, status: int, type_: str, meaning: str, advice: str) -> ErrorCode:
    return ErrorCode(code=code, status=status, type=type_, meaning=meaning, advice=advice)


_INVALID: Final = "invalid_request_error"

ERROR_CODES: Final = (
    _code("invalid_json", 400, _INVALID, "The body is not a JSON object.", "Send one JSON object in UTF-8."),
    _code("invalid_request", 400, _INVALID, "The request is malformed.", "Correct what the message names."),
    _code("missing_key", 401, "authentication_error", "No key was sent.", "Send `Authorization: Bearer <key>`."),
    _code("invalid_key", 401, "authentication_error", "The key is not known.", "Check the key for typing errors."),
    _code("key_expired", 401, "authentication_error", "The key has expired.", "Ask for a new key."),
    _code("key_revoked", 401, "authentication_error", "The key was revoked.", "Ask for a new key."),
    _code(
        "budget_exceeded",
        402,
        "insufficient_quota",
        "A budget is used up.",
        "Wait for its next period, or ask for more.",
    ),
    _code(
        "key_disabled",
        403,
        "permission_error",
        "The key, or what it belongs to, is disabled.",
        "Ask whoever gave it out.",
    ),
    _code("model_not_allowed", 403, "permission_error", "This key may not call this model.", "See GET /v1/models."),
    _code("model_not_found", 404, _INVALID, "No such model.", "See GET /v1/models."),
    _code("not_found", 404, _INVALID, "No such path.", "Check the base URL."),
    _code(
        "endpoint_not_supported",
        404,
        _INVALID,
        "The gateway does not serve this endpoint.",
        "Call the provider itself.",
    ),
    _code("method_not_allowed", 405, _INVALID, "The path exists, the method does not.", "Use the method in `allow`."),
    _code("request_timeout", 408, _INVALID, "The request was not sent in time.", "Send it again."),
    _code("request_too_large", 413, _INVALID, "The body is too large.", "Send a smaller body."),
    _code(
        "unsupported_media_type",
        415,
        _INVALID,
        "The body is not JSON, or is compressed.",
        "Send plain `application/json`.",
    ),
    _code("headers_too_large", 431, _INVALID, "The headers are too large.", "Send fewer or shorter headers."),
    _code("client_closed", 499, _INVALID, "The client went away (recorded only).", "Nothing."),
    _code("internal_error", 500, "api_error", "The gateway has a fault.", "Report the `request_id`; its log has it."),
    _code(
        "not_implemented",
        501,
        _INVALID,
        "The transfer encoding is not supported.",
        "Use `chunked` or `content-length`.",
    ),
    _code(
        "rate_limit_exceeded",
        429,
        "rate_limit_error",
        "Too many requests or tokens in a minute.",
        "Wait as `retry-after` says.",
    ),
    _code(
        "concurrency_limit_exceeded",
        429,
        "rate_limit_error",
        "Too many requests are open at once.",
        "Wait for one of yours to end.",
    ),
    _code(
        "provider_rate_limited",
        429,
        "rate_limit_error",
        "The provider refused: too many requests.",
        "Wait as `retry-after` says.",
    ),
    _code("provider_error", 502, "provider_error", "The provider failed.", "Try again; the message names the target."),
    _code("all_providers_failed", 502, "provider_error", "Every target of the route failed.", "Try again later."),
    _code("provider_timeout", 504, "provider_error", "The provider did not answer in time.", "Try again later."),
    _code(
        "no_provider_available",
        503,
        "service_unavailable",
        "No target of the route can be used.",
        "Ask the platform team.",
    ),
    _code(
        "gateway_overloaded",
        503,
        "service_unavailable",
        "The gateway is at a limit of its own.",
        "Wait as `retry-after` says.",
    ),
    _code(
        "dependency_unavailable",
        503,
        "service_unavailable",
        "The gateway misses its configuration.",
        "Wait as `retry-after` says.",
    ),
    _code(
        "stream_interrupted",
        200,
        "upstream_stream_error",
        "The stream broke after it had begun.",
        "Send the request again.",
    ),
)

BY_CODE: Final = {row.code: row for row in ERROR_CODES}
