"""The numbers that stand for names: kept in memory, asked for and added when new. No SQL.

Several writers may add the same name at once; the database decides, and all get the same number. The
numbers are added outside of the transaction that uses them: an unused number harms nobody, a number
in memory whose transaction was rolled back would.
"""

from collections.abc import Collection, Mapping
from typing import Final

from sluicegate.store.pool import PoolConnection
from sluicegate.usage_writer import repository
from sluicegate.usage_writer.repository import Series
from sluicegate.usage_writer.rows import NONE, Ids, Names

MOST_COMBINATIONS: Final = 200_000


class Dimensions:
    """Known combinations of names. A client that invents model names fills it: then it is emptied."""

    def __init__(self, most: int = MOST_COMBINATIONS) -> None:
        self._most = most
        self._generation = 0
        self._ids: dict[Names, Ids] = {}
        self._names: dict[str, int] = {}
        self._series: dict[Series, int] = {}
        self.get = self._ids.get

    def clear(self) -> None:
        """Forget all. Needed whenever the database may be another one, or an older state of it (a failover)."""
        self._generation += 1
        self._ids.clear()
        self._names.clear()
        self._series.clear()

    async def learn(self, connection: PoolConnection, combinations: Collection[Names]) -> dict[Names, Ids]:
        """Return the numbers of these combinations, and let `get` know them from now on.

        Not to be called inside a transaction that may be rolled back.
        """
        if len(self._ids) + len(combinations) > self._most:
            self.clear()
        generation = self._generation
        numbers = await self._numbers(connection, combinations)
        series_of = {names: _series(names, numbers) for names in combinations}
        series_ids = await self._series_ids(connection, set(series_of.values()))
        learned = {
            names: Ids(
                series=series_ids[series_of[names]],
                key=_number(names[3], numbers),
                edge=_number(names[9], numbers),
                error_code=_number(names[10], numbers),
            )
            for names in combinations
        }
        if generation == self._generation:  # else it was cleared meanwhile, and this may be out of date
            self._names.update(numbers)
            self._series.update(series_ids)
            self._ids.update(learned)
        return learned

    async def _numbers(self, connection: PoolConnection, combinations: Collection[Names]) -> dict[str, int]:
        texts = {text for names in combinations for text in names if isinstance(text, str) and text}
        known = {text: self._names[text] for text in texts if text in self._names}
        if new := sorted(texts - known.keys()):
            known |= await repository.name_ids(connection, new)
        return known

    async def _series_ids(self, connection: PoolConnection, series: set[Series]) -> dict[Series, int]:
        known = {one: self._series[one] for one in series if one in self._series}
        if new := sorted(series - known.keys()):
            known |= await repository.series_ids(connection, new)
        return known


def _number(name: str | None, numbers: Mapping[str, int]) -> int:
    return numbers[name] if name else NONE


def _series(names: Names, numbers: Mapping[str, int]) -> Series:
    tenant, department, team, key, endpoint, requested, provider, upstream, streamed, _edge, _error = names
    return (
        _number(tenant, numbers),
        _number(department, numbers),
        _number(team, numbers),
        _number(key, numbers),
        _number(endpoint, numbers),
        _number(requested, numbers),
        _number(provider, numbers),
        _number(upstream, numbers),
        streamed,
    )
