"""Who asks for what: the meters of a run, and the requests that use them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol

from sluicegate.devstack.ledger_simulation.server import EPOCH_S

TAG = "t"
MILLION = 1_000_000
_NANO_USD_PER_TOKEN = 10_001

# The one period of every budget; runs begin inside it, as most do.
PERIOD_START_US = (EPOCH_S - 3_600) * 1_000_000
PERIOD_END_US = (EPOCH_S + 86_400) * 1_000_000


@dataclass(frozen=True)
class MeterSpec:
    """A limit on a scope."""

    resource: Literal["budget", "requests", "tokens", "open"]
    scope_id: str
    limit: int

    @property
    def is_sum(self) -> bool:
        return self.resource == "budget"

    @property
    def is_rate(self) -> bool:
        return self.resource in {"requests", "tokens"}


@dataclass(frozen=True)
class Request:
    """The meters a request takes from, what it reserves, what it will really use, and how long it takes."""

    specs: tuple[MeterSpec, ...]
    tokens: int
    cost_nano_usd: int
    true_tokens: int
    true_cost_nano_usd: int
    lasts_s: float

    def need(self, spec: MeterSpec) -> int:
        """Return what it takes from a meter at first."""
        return {"tokens": self.tokens, "budget": self.cost_nano_usd}.get(spec.resource, 1)

    def true_use(self, spec: MeterSpec) -> int:
        """Return what it turns out to have used."""
        return {"tokens": self.true_tokens, "budget": self.true_cost_nano_usd}.get(spec.resource, 1)


class Workload(Protocol):
    """What the processes of a run have to do."""

    requests_per_s: float  # by each process

    @property
    def specs(self) -> Sequence[MeterSpec]:
        """Name all limits of the run."""
        ...

    def request(self, random: Random) -> Request:
        """Draw a request."""
        ...


class FewMeters:
    """Four meters, all run against their limits: each request uses some of them."""

    def __init__(self, requests_per_s: float = 25.0, share_of_limits: float = 1.0) -> None:
        self.requests_per_s = requests_per_s
        self.specs = (
            MeterSpec("budget", "b", int(9_000 * MILLION * share_of_limits)),
            MeterSpec("requests", "k", int(3_000 * share_of_limits)),
            MeterSpec("tokens", "k", int(1_800_000 * share_of_limits)),
            MeterSpec("open", "k", int(110 * share_of_limits)),
        )

    def request(self, random: Random) -> Request:
        """Draw a request over one to four of the meters."""
        specs = tuple(spec for spec in self.specs if random.random() < 0.7) or self.specs[:1]
        return _request(specs, random)


class BusyRates:
    """Only rates, always at their limits."""

    def __init__(self) -> None:
        self.requests_per_s = 15.0
        self.specs = (MeterSpec("requests", "k", 1_500), MeterSpec("tokens", "k", 1_000_000))

    def request(self, random: Random) -> Request:
        """Draw a request over one of the meters, or both."""
        return _request(random.choice((self.specs, self.specs[:1], self.specs[1:])), random)


class ManyMeters:
    """Keys with a budget, two rates and open requests each, in teams with budgets; a few keys do most of the work."""

    def __init__(self, keys: int = 440, requests_per_s: float = 49.0, tight: float = 0.0) -> None:
        self.requests_per_s = requests_per_s
        self._keys: list[tuple[MeterSpec, ...]] = []
        specs: list[MeterSpec] = []
        teams = [MeterSpec("budget", f"team{index}", 200_000 * MILLION) for index in range(max(keys // 8, 1))]
        for index in range(keys):
            mine = (
                MeterSpec("budget", f"key{index}", int((300 if index / keys < tight else 90_000) * MILLION)),
                MeterSpec("requests", f"key{index}", 3_000),
                MeterSpec("tokens", f"key{index}", 3_000_000),
                MeterSpec("open", f"key{index}", 200),
                teams[index % len(teams)],
            )
            self._keys.append(mine)
            specs.extend(mine[:-1])
        self.specs = (*specs, *teams)
        self._cumulative = list(itertools.accumulate(1 / (rank + 1) for rank in range(keys)))

    def request(self, random: Random) -> Request:
        """Draw a request of one key, by Zipf's law."""
        (specs,) = random.choices(self._keys, cum_weights=self._cumulative)
        return _request(specs, random)


def _request(specs: tuple[MeterSpec, ...], random: Random) -> Request:
    tokens = random.randint(200, 2_000)
    # Mostly below the estimate; one in twenty uses more than was reserved.
    share = random.uniform(0.2, 1.0) if random.random() < 0.95 else random.uniform(1.0, 1.5)
    true_tokens = int(tokens * share)
    lasts_s = random.uniform(20, 90) if random.random() < 0.01 else random.expovariate(1 / 1.5)
    return Request(
        specs,
        tokens=tokens,
        cost_nano_usd=tokens * _NANO_USD_PER_TOKEN,
        true_tokens=true_tokens,
        true_cost_nano_usd=true_tokens * _NANO_USD_PER_TOKEN,
        lasts_s=lasts_s,
    )
