"""Pure decisions: when a delivery is tried again, what an answer means, what can be stored. No I/O."""

import datetime as dt
from typing import Final, Literal

import msgspec

from sluicegate.contracts.facts import BudgetThresholdReached

ATTEMPTS: Final = 6
# An hour from the first attempt to the last, before jitter.
RETRY_DELAYS_S: Final = (30.0, 120.0, 420.0, 1_020.0, 2_010.0)
_JITTER: Final = 0.2
_MOST_RETRY_AFTER_S: Final = 3_600.0
# While its endpoint's circuit is open a delivery uses up no attempts; it waits no longer than this.
ROUND_S: Final = 7_200.0

# An endpoint that failed this often in a row is left alone, longer each time.
CIRCUIT_FAILURES: Final = 5
CIRCUIT_FIRST_S: Final = 30.0
CIRCUIT_MOST_S: Final = 300.0

_GONE: Final = 410
_INT4_MAX: Final = 2**31 - 1
_INT8_MAX: Final = 2**63 - 1
_LAST_US: Final = int(dt.datetime(9999, 1, 1, tzinfo=dt.UTC).timestamp()) * 1_000_000


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one attempt. `is_final`: trying again is pointless until somebody changes the endpoint."""

    status: int | None = None
    error: str | None = None
    retry_after_s: float | None = None
    is_final: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the delivery, and of its endpoint's circuit."""

    state: Literal["delivered", "pending", "dead"]
    endpoint: Literal["well", "failed", "gone", "unknown"]
    retry_in_s: float = 0.0
    error: str | None = None


def outcome(answer: Answer, *, attempts_left: int, attempts: int = ATTEMPTS, jitter: float = 0.0) -> Outcome:
    """Judge an answer. `jitter` lies between -1 and 1; `attempts_left` are those after this one."""
    if answer.status is not None and 200 <= answer.status < 300:
        return Outcome(state="delivered", endpoint="well")
    error = answer.error or f"answered {answer.status}"
    if answer.status == _GONE:
        return Outcome(state="dead", endpoint="gone", error=error)
    if answer.is_final:
        return Outcome(state="dead", endpoint="unknown", error=error)
    if attempts_left <= 0:
        return Outcome(state="dead", endpoint="failed", error=error)
    return Outcome(
        state="pending",
        endpoint="failed",
        retry_in_s=retry_delay_s(attempts - attempts_left, jitter=jitter, retry_after_s=answer.retry_after_s),
        error=error,
    )


def retry_delay_s(attempt: int, *, jitter: float = 0.0, retry_after_s: float | None = None) -> float:
    """Return the wait after an attempt (1 is the first); at least what the receiver asked for, up to an hour."""
    place = min(max(attempt, 1), len(RETRY_DELAYS_S)) - 1
    delay_s = RETRY_DELAYS_S[place] * (1 + _JITTER * jitter)
    return max(delay_s, min(retry_after_s or 0.0, _MOST_RETRY_AFTER_S))


def refusal(event: BudgetThresholdReached) -> str | None:
    """Return why an event cannot be stored, None if it can."""
    if not 0 < event.threshold_percent <= _INT4_MAX:
        return "threshold_percent is out of range"
    if not (0 <= event.limit_nano_usd <= _INT8_MAX and 0 <= event.spent_nano_usd <= _INT8_MAX):
        return "an amount is out of range"
    if not 0 <= event.period_start_us <= event.period_end_us <= _LAST_US or not 0 <= event.at_us <= _LAST_US:
        return "a time is out of range"
    texts = (event.event_id, event.tenant or "", event.budget, event.budget_name, event.scope_id)
    if any("\0" in text for text in texts):
        return "a text holds a NUL character"
    if max(map(len, texts)) > 1_000:
        return "a text is too long"
    return None
