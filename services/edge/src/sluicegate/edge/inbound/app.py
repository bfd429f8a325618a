"""The ASGI app behind the protocol class: the models list, and the right error for everything else."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from sluicegate.contracts.catalogue import Model, Route
from sluicegate.edge.edge import Edge
from sluicegate.edge.errors import Refusal
from sluicegate.edge.inbound.head import RequestHead
from sluicegate.edge.inbound.paths import (
    DATA_PLANE,
    MODELS,
    MODELS_PREFIXES,
    deployment_of,
    dialect_of,
    is_unsupported,
)
from sluicegate.edge.phases.authenticate import authenticate
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.phases.settle import settle, settle_refused
from sluicegate.runtime.logs import get_logger

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Headers = list[tuple[bytes, bytes]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_log = get_logger(__name__)
_JSON: Final = (b"content-type", b"application/json")


class EdgeApp:
    """Answers requests that are not data-plane calls; `start` and `stop` run with the server."""

    def __init__(self, start: Callable[[], Awaitable[Edge]], stop: Callable[[], Awaitable[None]]) -> None:
        self._start = start
        self._stop = stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the server's lifespan."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        else:
            await _answer(scope, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        scope["state"]["edge"] = await self._start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})


class _Caller:
    """The client of an ASGI request, as far as an exchange without a relay needs one."""

    def __init__(self, address: str) -> None:
        self.address = address

    def write(self, data: bytes) -> None:
        """Nothing: the app sends its answer itself."""

    def finish(self, exchange: Exchange, data: bytes) -> None:
        """Nothing: the app sends its answer itself."""

    def refuse_body(self, exchange: Exchange) -> None:
        """Nothing: uvicorn reads the rest of the body."""

    def abort(self) -> None:
        """Nothing: uvicorn owns the connection."""


async def _answer(scope: Scope, send: Send) -> None:
    edge: Edge = scope["state"]["edge"]
    head = RequestHead(dict(scope["headers"]), MODELS)
    address = scope["client"][0] if scope["client"] else ""
    exchange = Exchange(edge, _Caller(address), head)
    status, headers = 200, Headers()
    try:
        body = _models(exchange, _model_id(scope))
    except Refusal as refusal:
        status, headers, body = _refused(exchange, scope, refusal)
    except Exception:  # noqa: BLE001 - uvicorn's answer would be plain text
        _log.exception("a request failed on a fault of the gateway", request_id=exchange.request_id)
        fault = Refusal("internal_error", "The gateway failed on this request. Its log has the request id.")
        status, headers, body = _refused(exchange, scope, fault)
    headers += [_JSON, (b"x-request-id", exchange.request_id.encode()), (b"content-length", b"%d" % len(body))]
    if edge.is_draining or b"expect" in head.headers:
        # Whether a body that waits for `100 Continue` comes or not can no longer be told.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _refused(exchange: Exchange, scope: Scope, refusal: Refusal) -> tuple[int, Headers, bytes]:
    if exchange.state == "waiting":
        exchange.edge.metrics.count_request("none", refusal.status, "rejected")
    elif not exchange.is_settled:
        settle_refused(exchange, refusal)
    return refusal.status, refusal.headers(), refusal.body(dialect_of(scope["path"]), exchange.request_id)


def _model_id(scope: Scope) -> str:
    """Return which model is asked for, "" for the list. Refusal: the request asks for something else."""
    path = scope["path"]
    prefix = next((p for p in MODELS_PREFIXES if path == p or path.startswith(p + "/")), None)
    if prefix is None:
        raise _no_such(path, scope["raw_path"])
    if scope["method"] not in {"GET", "HEAD"}:
        raise Refusal("method_not_allowed", f"{path} takes GET.", allow="GET, HEAD")
    return str(path[len(prefix) + 1 :])


def _no_such(path: str, raw_path: bytes) -> Refusal:
    if raw_path in DATA_PLANE or deployment_of(raw_path):
        return Refusal("method_not_allowed", f"{path} takes POST.", allow="POST")
    if is_unsupported(path):
        return Refusal("endpoint_not_supported", f"The gateway does not serve {path}.")
    return Refusal("not_found", f"There is nothing at {path}. The API is under /v1.")


def _models(exchange: Exchange, model_id: str) -> bytes:
    """Answer the list (no `model_id`) or one model; a request with a good key ends with a record, as all do."""
    edge = exchange.edge
    exchange.state = "running"
    edge.metrics.in_flight += 1
    authenticate(exchange)
    body = _render_models(exchange, model_id)
    settle(exchange, outcome="success", status=200)
    return body


def _render_models(exchange: Exchange, model_id: str) -> bytes:
    if exchange.principal is None:
        raise RuntimeError("the list comes after authenticate")
    rows = [_row(route, model) for route, model in exchange.edge.view.callable_routes(exchange.principal)]
    if not model_id:
        return json.dumps({"object": "list", "data": rows}).encode()
    row = next((row for row in rows if row["id"] == model_id), None)
    if row is None:
        raise Refusal("model_not_found", f"There is no model {model_id[:256]!r} for this key.", param="model")
    return json.dumps(row).encode()


def _row(route: Route, model: Model) -> dict[str, object]:
    return {
        "id": route.alias,
        "object": "model",
        "created": route.created_at_us // 1_000_000,
        "owned_by": model.owned_by or "sluicegate",
        "model_type": model.model_type,
        "capabilities": list(model.capabilities),
    }
