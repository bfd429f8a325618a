"""The numbers that stand for names: kept in memory, asked for and added when new. No SQL.

Several writers may add the same name at once; the database decides, and all get the same number. The
numbers are added outside of the transaction that uses them: an unused number harms nobody, a number
in memory whose transaction was rolled back would.
"""

from collections.abc import Collection, Mapping
from typing import Final

from sluicegate.contracts.usage import COST_SOURCES, USAGE_SOURCES
from sluicegate.store.pool import PoolConnection
from sluicegate.usage_writer import repository
from sluicegate.usage_writer.repository import Combination
from sluicegate.usage_writer.rows import NO_VERSION, NONE, Names, SeriesIds

MOST_SERIES: Final = 200_000


class Dimensions:
    """Known series and names. A client that invents model names fills it: then it is emptied."""

    def __init__(self, most: int = MOST_SERIES) -> None:
        self._most = most
        self._generation = 0
        self._names: dict[str, int] = {}
        self._series: dict[Names, SeriesIds] = {}
        self.series = self._series.get
        self.number = self._names.get

    def clear(self) -> None:
        """Forget all. Needed whenever the database may be another one, or an older state of it (a failover)."""
        self._generation += 1
        self._names.clear()
        self._series.clear()

    async def numbers(self, connection: PoolConnection, names: Collection[str]) -> dict[str, int]:
        """Return the number of each name; "" is `NONE`. Not inside a transaction that may be rolled back."""
        known = {name: self._names[name] for name in names if name in self._names}
        known[""] = NONE
        if new := sorted(set(names) - known.keys()):
            generation = self._generation
            added = await repository.name_ids(connection, new)
            known |= added
            if generation == self._generation:  # else it was cleared meanwhile, and this may be out of date
                self._names.update(added)
        return known

    async def learn(self, connection: PoolConnection, series: Collection[Names]) -> dict[Names, SeriesIds]:
        """Return the numbers of these series, and let `series` know them from now on.

        Not inside a transaction that may be rolled back.
        """
        if len(self._series) + len(series) > self._most:
            self.clear()
        generation = self._generation
        numbers = await self.numbers(connection, {part for names in series for part in _texts(names)})
        combinations = {names: _combination(names, numbers) for names in series}
        ids = await repository.series_ids(connection, sorted(set(combinations.values())))
        learned = {names: SeriesIds(ids[combinations[names]], numbers[names[3]]) for names in series}
        if generation == self._generation:
            self._series.update(learned)
        return learned


def _texts(names: Names) -> list[str]:
    return [part or "" for part in names[:8]]


def _combination(names: Names, numbers: Mapping[str, int]) -> Combination:
    tenant, department, team, key, endpoint, requested, provider, upstream = (numbers[part] for part in _texts(names))
    version, usage_source, cost_source, streamed = names[8:]
    return (
        tenant,
        department,
        team,
        key,
        endpoint,
        requested,
        provider,
        upstream,
        NO_VERSION if version is None else version,
        USAGE_SOURCES.index(usage_source),
        COST_SOURCES.index(cost_source),
        streamed,
    )
