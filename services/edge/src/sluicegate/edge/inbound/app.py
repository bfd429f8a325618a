"""The ASGI app behind the protocol class: the models list, and the right error for everything else."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

from sluicegate.contracts.catalogue import Model, Route
from sluicegate.edge.edge import Edge
from sluicegate.edge.errors import Refusal
from sluicegate.edge.inbound.paths import DATA_PLANE, MODELS, MODELS_PREFIXES, dialect_of, is_unsupported
from sluicegate.edge.mirrors.view import Principal
from sluicegate.edge.phases.authenticate import identify
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.phases.settle import settle, settle_refused

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

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
    path, method = scope["path"], scope["method"]
    head = dict(scope["headers"])
    address = scope["client"][0] if scope["client"] else ""
    exchange = Exchange(edge, _Caller(address), MODELS, head, b"", keeps_alive=True, is_http10=False)
    try:
        status, headers, body = 200, [], _models(exchange, _model_id(method, path))
    except Refusal as refusal:
        status, headers = refusal.status, refusal.headers()
        body = refusal.body(dialect_of(path), exchange.request_id)
    headers += [_JSON, (b"x-request-id", exchange.request_id.encode()), (b"content-length", b"%d" % len(body))]
    if edge.is_draining:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _model_id(method: str, path: str) -> str:
    """Return which model is asked for, "" for the list. Refusal: the request asks for something else."""
    prefix = next((p for p in MODELS_PREFIXES if path == p or path.startswith(p + "/")), None)
    if prefix is None:
        raise _no_such(path)
    if method not in ("GET", "HEAD"):
        raise Refusal("method_not_allowed", f"{path} takes GET.", allow="GET, HEAD")
    return unquote(path[len(prefix) + 1 :])


def _no_such(path: str) -> Refusal:
    if path.encode("utf-8", "surrogateescape") in DATA_PLANE:
        return Refusal("method_not_allowed", f"{path} takes POST.", allow="POST")
    if is_unsupported(path):
        return Refusal("endpoint_not_supported", f"The gateway does not serve {path}.")
    return Refusal("not_found", f"There is nothing at {path}. The API is under /v1.")


def _models(exchange: Exchange, model_id: str) -> bytes:
    """Answer the list (no `model_id`) or one model; a request with a good key ends with a record, as all do."""
    edge = exchange.edge
    edge.metrics.in_flight += 1
    try:
        principal = exchange.principal = identify(edge.view, exchange.head, exchange.started_at_us)
        body = _render_models(edge, principal, model_id)
    except Refusal as refusal:
        settle_refused(exchange, refusal)
        raise
    settle(exchange, outcome="success", status=200)
    return body


def _render_models(edge: Edge, principal: Principal, model_id: str) -> bytes:
    rows = [_row(route, model) for route, model in edge.view.callable_routes(principal)]
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
