"""What is decided when the store cannot be asked: pure, from what this process knows.

- `local-share`: each process serves its share of what was left at the last answer, minus what it has reserved and
  settled itself since. A meter that was never answered for gives a share of its whole limit. Shares are by the number
  of processes that the answer named, and never by fewer than are configured: the others take a share as well when
  requests come to them. While leases are good it is at most a share of what nobody had leased. All shares together
  stay below the limit as long as those numbers were right.
- `closed`: refuse, with 503. `open`: serve.

Only settled money that is known to fill a budget refuses as a limit does (402); all else is an infrastructure fault.
"""

from typing import Final, Literal

from sluicegate.ledger.meters import Meter, MeterSet, Short

WhenStoreAway = Literal["local-share", "closed", "open"]
FAILURES_THAT_OPEN: Final = 3
_RETRY_S: Final = 1


class Breaker:
    """Opens at the third failure in a row; the next answer closes it. Calls go on as probes, requests do not wait."""

    __slots__ = ("failures",)

    def __init__(self) -> None:
        self.failures = 0

    @property
    def is_open(self) -> bool:
        return self.failures >= FAILURES_THAT_OPEN

    def answered(self) -> None:
        self.failures = 0

    def failed(self) -> None:
        self.failures += 1


def local_share(meter: Meter, configured_edges: int, *, has_lease: bool = False) -> int:
    """Return what this process may still give out of a meter without asking.

    While leases are good, the store's only being slow, that is no more than a share of what nobody had leased.
    """
    own = (meter.held if has_lease else meter.taken) + meter.settled - meter.synced + meter.lone
    spent = meter.spent or 0
    sharing = max(meter.members, configured_edges)
    share = (meter.limit - spent) // sharing - own
    if has_lease and meter.left is not None:
        share = min(share, max(0, meter.left) // sharing - meter.bare - meter.bare_sent)
    return share


def decide(
    when_store_away: WhenStoreAway, meters: MeterSet, tokens: int, cost_nano_usd: int, configured_edges: int, now: float
) -> Short | None:
    """Return who refuses, or None if the request may pass without a lease."""
    if when_store_away == "open":
        return None
    for meter in meters.all:
        if meter.is_soft:
            continue
        need = meters.need(meter, tokens, cost_nano_usd)
        if meter.spent is not None and meter.spent + need > meter.limit:
            return Short(meter, retry_after_s=_RETRY_S, is_final=True)
        has_lease = meter.is_ok and now < meter.pump.valid_until
        if when_store_away == "closed" or need > local_share(meter, configured_edges, has_lease=has_lease):
            return Short(meter, retry_after_s=_RETRY_S, reason="store_away")
    return None
