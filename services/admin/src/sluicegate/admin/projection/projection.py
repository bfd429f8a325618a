"""The projection as a whole: its life beside the API, and what a request sees of it."""

import time
from collections.abc import Sequence
from typing import Final

from nats.aio.msg import Msg

from sluicegate.admin.background import run_together
from sluicegate.admin.changes.changes import Edges, Propagation
from sluicegate.admin.changes.unit import Ref
from sluicegate.admin.metrics import Metrics
from sluicegate.admin.projection.comparison import Comparison
from sluicegate.admin.projection.edges import LiveEdges
from sluicegate.admin.projection.relay import Relay
from sluicegate.bus.connection import Connection
from sluicegate.bus.declaration import Declarations
from sluicegate.contracts import subjects

PROPAGATE_WITHIN_S: Final = 1.0


class EdgeProjection:
    """Tells the edges and waits for them."""

    def __init__(
        self,
        connection: Connection,
        nats_url: str,
        declarations: Declarations,
        relay: Relay,
        comparison: Comparison,
        edges: LiveEdges,
        metrics: Metrics,
    ) -> None:
        self._connection = connection
        self._nats_url = nats_url
        self._declarations = declarations
        self._relay = relay
        self._comparison = comparison
        self._edges = edges
        self._metrics = metrics

    async def propagate(self, refs: Sequence[Ref]) -> Propagation:
        """Tell the present state of these records and wait until every live edge has it, a second at most."""
        began_s = time.monotonic()
        deadline_s = began_s + PROPAGATE_WITHIN_S
        sequences = await self._relay.tell(refs, PROPAGATE_WITHIN_S)
        if sequences is None:
            propagation = Propagation(propagated=False, edges=Edges(applied=0, live=self._edges.live_count))
        else:
            propagation = await self._edges.wait(sequences, deadline_s)
        self._metrics.count_change(propagated=propagation.propagated, seconds=time.monotonic() - began_s)
        return propagation

    async def run(self) -> None:
        """Connect, declare, relay, compare, listen; until cancelled. NATS may be away for as long as it likes."""
        self._connection.on_connected(self._on_connected)
        try:
            await self._connection.open(self._nats_url)
            await self._connection.subscribe(f"{subjects.INVALIDATION_APPLIED}.*", cb=self._hear)
            await run_together(self._declarations.run(), self._relay.run(), self._compare())
        finally:
            await self._connection.close()

    async def _compare(self) -> None:
        await self._declarations.declared.wait()
        await self._comparison.run()

    async def _hear(self, message: Msg) -> None:
        self._edges.hear(message.data)

    def _on_connected(self) -> None:
        self._edges.begin_listening()
        self._relay.wake()
        self._comparison.wake()
