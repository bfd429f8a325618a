"""The live edges, and how far each has applied the buckets.

An edge is live if it announced itself within five seconds (it does so every two, and as it moves).
After a start or an outage it takes as long as one announcement to know who is there: until then an
answer waits rather than guess.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from sluicegate.admin.changes.changes import Edges, Propagation
from sluicegate.contracts.facts import InvalidationApplied
from sluicegate.runtime.logs import get_logger

LIVE_FOR_S: Final = 5.0
LEARNING_S: Final = 2.5

_DECODER: Final = msgspec.json.Decoder(InvalidationApplied)
_log = get_logger(__name__)


class Sequences(NamedTuple):
    """A place in both buckets' streams."""

    keys: int = 0
    catalogue: int = 0


@dataclass(frozen=True, slots=True)
class _Heard:
    applied: Sequences
    at_s: float


class LiveEdges:
    """What was heard from the edges."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}
        self._moved = asyncio.Event()
        self._listening_since_s = time.monotonic()

    def begin_listening(self) -> None:
        """Say that announcements may have been missed until now."""
        self._listening_since_s = time.monotonic()

    def hear(self, message: bytes) -> None:
        """Take an announcement."""
        try:
            said = _DECODER.decode(message)
        except msgspec.DecodeError as error:
            _log.warning("announcement of an edge not understood", error=str(error))
            return
        self._heard[said.edge] = _Heard(Sequences(said.keys_sequence, said.catalogue_sequence), time.monotonic())
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    @property
    def live_count(self) -> int:
        """How many edges are live."""
        return len(self._live())

    def state(self, wanted: Sequences) -> Propagation:
        """Tell how many live edges have applied `wanted`."""
        live = self._live()
        applied = sum(
            heard.applied.keys >= wanted.keys and heard.applied.catalogue >= wanted.catalogue for heard in live
        )
        return Propagation(propagated=0 < len(live) == applied, edges=Edges(applied=applied, live=len(live)))

    async def wait(self, wanted: Sequences, deadline_s: float) -> Propagation:
        """Return once all live edges have applied `wanted`, or at the deadline (of the monotonic clock)."""
        learnt_at_s = self._listening_since_s + LEARNING_S
        while True:
            state = self.state(wanted)
            now_s = time.monotonic()
            is_known = now_s >= learnt_at_s
            if (is_known and (state.propagated or not state.edges.live)) or now_s >= deadline_s:
                return state
            try:
                async with asyncio.timeout((deadline_s if is_known else min(deadline_s, learnt_at_s)) - now_s):
                    await self._moved.wait()
            except TimeoutError:
                pass

    def _live(self) -> list[_Heard]:
        gone_before_s = time.monotonic() - LIVE_FOR_S
        for edge in [edge for edge, heard in self._heard.items() if heard.at_s < gone_before_s]:
            del self._heard[edge]
        return list(self._heard.values())
