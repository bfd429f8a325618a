"""What all connections of one edge process share. Built in `wiring`, handed to the protocol by uvicorn's state."""

import asyncio
from email.utils import formatdate
from typing import TYPE_CHECKING, Protocol

from sluicegate.edge.config import EdgeSettings
from sluicegate.edge.metrics import Metrics
from sluicegate.edge.mirrors.view import View
from sluicegate.edge.outbound.pool import Pools
from sluicegate.edge.refused_keys import RefusedKeys
from sluicegate.edge.thresholds import Thresholds
from sluicegate.ledger.ledger import Ledger

if TYPE_CHECKING:
    from sluicegate.edge.phases.exchange import Exchange


class UsageJournal(Protocol):
    """Where usage events go: `edge.journal`, or a list in tests."""

    @property
    def is_full(self) -> bool:
        """Whether requests must be refused, because they could not be recorded."""

    def admitted(self, request_id: str, body: bytes) -> None:
        """Note that a request was admitted. JournalWriteError: it could not be noted."""

    def finished(self, request_id: str, tenant: str, body: bytes) -> None:
        """Note a request's usage event. Never fails."""


class Edge:
    """One edge process. `date` is a whole header line, renewed each second."""

    def __init__(
        self,
        settings: EdgeSettings,
        *,
        edge_id: str,
        metrics: Metrics,
        pools: Pools,
        view: View,
        journal: UsageJournal,
        refused_keys: RefusedKeys,
        ledger: Ledger,
        thresholds: Thresholds,
    ) -> None:
        self.settings = settings
        self.edge_id = edge_id
        self.metrics = metrics
        self.pools = pools
        self.view = view
        self.journal = journal
        self.refused_keys = refused_keys
        self.ledger = ledger
        self.thresholds = thresholds
        self.loop = asyncio.get_running_loop()
        self.open_exchanges: set[Exchange] = set()
        # Requests that wait for a limit's meter.
        self.waiting: set[asyncio.Task[None]] = set()
        self.buffered_bytes = 0
        self.is_draining = False
        self.is_stopping = False
        self.date = b""
        self.renew_date()

    def renew_date(self) -> None:
        """Write the present time into the date header."""
        self.date = b"date: " + formatdate(usegmt=True).encode() + b"\r\n"

    def release_body(self, exchange: "Exchange") -> None:
        """Let a request's body go; it counts no longer."""
        self.buffered_bytes -= exchange.held_bytes
        exchange.held_bytes = 0
        exchange.parts.clear()
        exchange.body = b""
        exchange.scan = None
