"""The state of one request and its answer, from the end of its head to its one end state. No behaviour of a phase."""

import time
from typing import TYPE_CHECKING, Literal, Protocol

from sluicegate.contracts.ids import uuid7_text
from sluicegate.edge.inbound.head import RequestHead
from sluicegate.edge.mirrors.limits import UNBOUND, Bounds

if TYPE_CHECKING:
    from sluicegate.contracts.money import Price
    from sluicegate.edge.edge import Edge
    from sluicegate.edge.mirrors.targets import Target
    from sluicegate.edge.mirrors.view import Principal
    from sluicegate.edge.phases.classify import ChatRequest
    from sluicegate.edge.phases.records import SharedHalves
    from sluicegate.edge.phases.relay import Relay
    from sluicegate.edge.wire.body_scan import BodyScan
    from sluicegate.ledger.meters import Reservation


class Client(Protocol):
    """The client's connection, as phases see it."""

    def write(self, data: bytes) -> None:
        """Send bytes; a client that has gone takes them silently."""

    def finish(self, exchange: "Exchange", data: bytes) -> None:
        """Send the last bytes of this exchange's answer and go on with the next request, or close."""

    def refuse_body(self, exchange: "Exchange") -> None:
        """The answer is out before the request is whole: throw the rest of it away, then close."""

    def abort(self) -> None:
        """Cut the connection."""

    @property
    def address(self) -> str:
        """The client's address, for the aggregated refusals."""


class Exchange:
    """One request and its answer. `started_ns` is a monotonic clock, `started_at_us` is the wall clock.

    `expected_bytes`: the body's length, None until its end where it comes in chunks. `model_span`: the model's place
    in the body; None: it has none there. `price` and `shared_halves` are those of the first target.
    """

    __slots__ = (
        "attempts",
        "body",
        "bounds",
        "chat",
        "client",
        "edge",
        "end_user",
        "endpoint",
        "expected_bytes",
        "first_token_ns",
        "has_answer_begun",
        "head",
        "held_bytes",
        "input_estimate",
        "is_http10",
        "is_settled",
        "is_whole",
        "keeps_alive",
        "model_span",
        "parts",
        "price",
        "principal",
        "provider_ns",
        "received_bytes",
        "relay",
        "request_id",
        "reservation",
        "scan",
        "shared_halves",
        "started_at_us",
        "started_ns",
        "state",
        "target",
        "target_bounds",
        "target_reservation",
        "targets",
        "upstream_request_id",
    )

    def __init__(
        self,
        edge: "Edge",
        client: Client,
        head: RequestHead,
        *,
        expected_bytes: int | None = None,
        keeps_alive: bool = True,
        is_http10: bool = False,
    ) -> None:
        self.edge = edge
        self.client = client
        self.endpoint = head.endpoint
        self.head = head
        self.expected_bytes = expected_bytes
        self.keeps_alive = keeps_alive
        self.is_http10 = is_http10
        now_ns = time.time_ns()
        self.started_at_us = now_ns // 1000
        self.started_ns = time.monotonic_ns()
        self.request_id = uuid7_text(self.started_at_us)
        self.state: Literal["waiting", "receiving", "running", "ended"] = "waiting"
        # A small body is joined when it is whole; a large one is scanned as it comes, and stays in its parts.
        self.parts: list[bytes] = []
        self.scan: BodyScan | None = None
        self.received_bytes = 0
        self.held_bytes = 0
        self.is_whole = False
        self.body = b""
        self.principal: Principal | None = None
        self.chat: ChatRequest | None = None
        self.model_span: tuple[int, int] | None = None
        self.input_estimate = 0
        self.end_user: str | None = None
        self.targets: tuple[Target, ...] = ()
        self.price: Price | None = None
        self.shared_halves: SharedHalves | None = None
        # What binds it, and what it has taken of that: of its caller's limits, and of the present target's.
        self.bounds: Bounds = UNBOUND
        self.reservation: Reservation | None = None
        self.target_bounds: Bounds = UNBOUND
        self.target_reservation: Reservation | None = None
        self.target: Target | None = None
        self.relay: Relay | None = None
        self.has_answer_begun = False
        self.is_settled = False
        # Of each: provider, status, and on the monotonic clock its start, first byte (0: none) and end.
        self.attempts: list[tuple[str, int | None, int, int, int]] = []
        self.first_token_ns = 0
        self.provider_ns = 0
        self.upstream_request_id: str | None = None
