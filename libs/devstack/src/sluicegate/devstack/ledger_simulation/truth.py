"""What really happened to each meter, told by the requests themselves and never by the ledger."""

from collections import deque

WINDOW_S = 60.0


class Charge:
    """What one request holds of one meter, from its admission on."""

    __slots__ = ("amount", "meter", "since_s")

    def __init__(self, meter: "TrueMeter", amount: int, since_s: float) -> None:
        self.meter = meter
        self.amount = amount
        self.since_s = since_s


class TrueMeter:
    """Spent and committed of one meter, and by how much it may rightly be above its limit (`allowed_excess`).

    `committed` is what admissions have taken: settled spend and open reservations of a budget, open requests, or the
    last minute's admissions of a rate; `peak` is its maximum since the last check. `debts` is what has been used since
    then beyond reservations.
    """

    __slots__ = (
        "_window",
        "allowed_excess",
        "committed",
        "debts",
        "is_rate",
        "is_sum",
        "limit",
        "name",
        "peak",
        "spent",
    )

    def __init__(self, name: str, limit: int, *, is_sum: bool, is_rate: bool) -> None:
        self.name = name
        self.limit = limit
        self.is_sum = is_sum
        self.is_rate = is_rate
        self.spent = 0
        self.committed = 0
        self.peak = 0
        self.debts = 0
        self.allowed_excess = 0
        self._window: deque[Charge] = deque()

    def admitted(self, need: int, now_s: float) -> Charge:
        """A request was let through."""
        self.forget_before(now_s - WINDOW_S)
        charge = Charge(self, need, now_s)
        if self.is_rate:
            self._window.append(charge)
        self._commit(need)
        return charge

    def settled(self, charge: Charge, cost: int, now_s: float) -> None:
        """The request ended."""
        self.forget_before(now_s - WINDOW_S)
        change = cost - charge.amount
        if self.is_rate:
            if charge.since_s > now_s - WINDOW_S:
                charge.amount = cost
                self._commit(change)
        elif self.is_sum:
            self.spent += cost
            self._commit(change)
        else:
            self.committed -= charge.amount

    def forget_before(self, then_s: float) -> None:
        """Let admissions of a rate go that are older than its window."""
        while self._window and self._window[0].since_s <= then_s:
            self.committed -= self._window.popleft().amount

    def _commit(self, amount: int) -> None:
        self.committed += amount
        self.peak = max(self.peak, self.committed)
