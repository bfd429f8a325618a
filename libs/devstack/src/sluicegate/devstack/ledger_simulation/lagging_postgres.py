"""What Postgres knows of the truth: every settlement once, in stream order, some time later.

The writer stores what is published in the order of the stream. When a settlement is published is the process's
business: within 50 ms, or after its death by whoever adopts its journal; late then, but whole.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

_BEHIND_AFTER_S = 1.0
_POLL_S = 0.02


@dataclass
class LaggingPostgres:
    """Settled spend per meter. `lag_s` (publishing to stored) is changed by faults."""

    lag_s: float = 0.05
    _published: int = 0
    _stored: int = 0
    _on_its_way: deque[tuple[float, str, int]] = field(default_factory=deque)
    _spent: dict[str, int] = field(default_factory=dict)
    _sums: dict[str, list[tuple[float, int]]] = field(default_factory=dict)  # published so far, at each publication

    def spent(self, name: str) -> int:
        """Return what is stored now."""
        self._store()
        return self._spent.get(name, 0)

    async def spent_so_far(self, name: str) -> int | None:
        """Answer as the usage-writer does: once all that was published when asked is stored; None is "behind"."""
        loop = asyncio.get_running_loop()
        asked_s, wanted = loop.time(), self._published
        while self.stored_up_to() < wanted:
            if loop.time() - asked_s > _BEHIND_AFTER_S:
                return None
            await asyncio.sleep(_POLL_S)
        return self._spent.get(name, 0)

    def published_before(self, name: str, then_s: float) -> int:
        """Return what of a meter had been published at an instant."""
        sums = self._sums.get(name, [])
        index = bisect_right(sums, then_s, key=lambda row: row[0])
        return sums[index - 1][1] if index else 0

    def published_up_to(self) -> int:
        return self._published

    def stored_up_to(self) -> int:
        self._store()
        return self._stored

    def publish(self, name: str, cost: int) -> None:
        """Take a settlement into the stream."""
        now_s = asyncio.get_running_loop().time()
        last_s = self._on_its_way[-1][0] if self._on_its_way else 0.0
        self._published += 1
        sums = self._sums.setdefault(name, [(0.0, 0)])
        sums.append((now_s, sums[-1][1] + cost))
        self._on_its_way.append((max(last_s, now_s + self.lag_s), name, cost))

    def _store(self) -> None:
        now_s = asyncio.get_running_loop().time()
        while self._on_its_way and self._on_its_way[0][0] <= now_s:
            _, name, cost = self._on_its_way.popleft()
            self._spent[name] = self._spent.get(name, 0) + cost
            self._stored += 1
