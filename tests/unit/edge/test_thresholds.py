"""What a process tells of thresholds: each once, until it is acknowledged."""

import asyncio
import gc
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from sluicegate.bus.acked_publisher import AckedPublisher, PublishError
from sluicegate.contracts.catalogue import Budget
from sluicegate.contracts.facts import BudgetThresholdReached
from sluicegate.devstack.ledger_stand_in import StandInStore
from sluicegate.edge.thresholds import Thresholds
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter

START_US = 1_793_491_200_000_000


class Publisher:
    """Acknowledges what it is given, or fails, or waits for the test."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, BudgetThresholdReached, Mapping[str, str]]] = []
        self.fails = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str], *, deadline_s: float) -> None:
        assert deadline_s > 0
        [event] = msgspec.json.decode(payload, type=list[BudgetThresholdReached])
        self.sent.append((subject, event, headers))
        await self.gate.wait()
        if self.fails:
            raise PublishError(subject, "not connected")

    @property
    def percents(self) -> list[int]:
        return [event.threshold_percent for _, event, _ in self.sent]


@pytest.fixture
async def publisher() -> Publisher:
    return Publisher()


@pytest.fixture
def thresholds(publisher: Publisher) -> Thresholds:
    return Thresholds(cast(AckedPublisher, publisher))


async def _nothing(_: Meter) -> int | None:
    return 0


def meter_of(ledger: Ledger | None = None, start_us: int = START_US) -> Meter:
    ledger = ledger or Ledger(StandInStore(), spent_so_far=_nothing)
    return ledger.sum_meter(
        "bud_1", "key_1", scope="key", start_us=start_us, end_us=start_us + 9, limit=100, zero_from_us=None
    )


def budget(**fields: Any) -> Budget:
    defaults = {"id": "bud_1", "name": "purse", "scope": "key", "scope_id": "key_1", "period": "day"}
    return Budget(**{"limit_nano_usd": 100, **defaults, **fields})


async def test_each_threshold_is_told_once_with_its_id(thresholds: Thresholds, publisher: Publisher) -> None:
    meter = meter_of()
    thresholds.watch(meter, budget(), "ten_1")
    for spent in (0, 49, 50, 51, 85, 90):
        thresholds.on_spent(meter, spent)
        await thresholds.close(1)
    assert publisher.percents == [50, 80]
    subject, event, headers = publisher.sent[0]
    assert subject == "gateway.budget.threshold.ten_1"
    assert headers == {"Nats-Msg-Id": event.event_id, "Sluicegate-Schema": "budget.threshold.v1"}
    assert event.event_id == f"bud_1:key_1:{START_US // 1_000_000}:50"
    assert (event.spent_nano_usd, event.period_start_us, event.period_end_us) == (50, START_US, START_US + 9)


async def test_spend_that_jumps_tells_all_that_it_passed(thresholds: Thresholds, publisher: Publisher) -> None:
    meter = meter_of()
    thresholds.watch(meter, budget(), None)
    thresholds.on_spent(meter, 500)
    await thresholds.close(1)
    assert publisher.percents == [50, 80, 100]
    assert {subject for subject, _, _ in publisher.sent} == {"gateway.budget.threshold._"}


async def test_threshold_that_could_not_be_told_is_told_when_it_is_seen_again(
    thresholds: Thresholds, publisher: Publisher
) -> None:
    meter = meter_of()
    thresholds.watch(meter, budget(), None)
    publisher.fails = True
    thresholds.on_spent(meter, 50)
    await thresholds.close(1)
    publisher.fails = False
    for spent in (51, 52):
        thresholds.on_spent(meter, spent)
        await thresholds.close(1)
    assert publisher.percents == [50, 50]


async def test_threshold_is_not_told_again_while_it_is_being_told(thresholds: Thresholds, publisher: Publisher) -> None:
    meter = meter_of()
    thresholds.watch(meter, budget(), None)
    publisher.gate.clear()
    for spent in (50, 51, 52):
        thresholds.on_spent(meter, spent)
        await asyncio.sleep(0)
    publisher.gate.set()
    await thresholds.close(1)
    assert publisher.percents == [50]


async def test_final_refusal_tells_the_last_threshold_once_if_it_was_chosen(
    thresholds: Thresholds, publisher: Publisher
) -> None:
    meter = meter_of()
    meter.spent = 95
    thresholds.watch(meter, budget(thresholds_percent=(50,)), None)
    thresholds.on_exhausted(meter)
    await thresholds.close(1)
    assert publisher.percents == []
    thresholds.watch(meter, budget(thresholds_percent=(50, 100)), None)
    for _ in range(3):
        thresholds.on_exhausted(meter)
    thresholds.on_spent(meter, 100)
    await thresholds.close(1)
    assert publisher.percents == [100, 50]
    assert publisher.sent[0][1].spent_nano_usd == 95


async def test_refusal_of_a_large_request_tells_nothing_while_much_is_left(
    thresholds: Thresholds, publisher: Publisher
) -> None:
    """The period has one alert of 100 %: whoever asks for too much shall not spend it."""
    meter = meter_of()
    thresholds.watch(meter, budget(), None)
    for spent in (None, 0, 79):
        meter.spent = spent
        thresholds.on_exhausted(meter)
    await thresholds.close(1)
    assert publisher.percents == []
    meter.spent = 80
    thresholds.on_exhausted(meter)
    await thresholds.close(1)
    assert publisher.percents == [100]


async def test_soft_budget_tells_the_last_threshold_whether_it_was_chosen_or_not(
    thresholds: Thresholds, publisher: Publisher
) -> None:
    meter = meter_of()
    thresholds.watch(meter, budget(thresholds_percent=(), is_soft=True), None)
    thresholds.on_spent(meter, 100)
    await thresholds.close(1)
    assert publisher.percents == [100]
    assert publisher.sent[0][1].is_soft


async def test_changed_limit_is_looked_at_anew_under_the_same_id(thresholds: Thresholds, publisher: Publisher) -> None:
    """The alert is one all the same: its row is unique."""
    meter = meter_of()
    thresholds.watch(meter, budget(), None)
    thresholds.on_spent(meter, 50)
    await thresholds.close(1)
    thresholds.watch(meter, budget(limit_nano_usd=1_000), None)
    thresholds.on_spent(meter, 51)
    await thresholds.close(1)
    assert publisher.percents == [50]
    thresholds.on_spent(meter, 500)
    await thresholds.close(1)
    assert publisher.percents == [50, 50]
    assert len({event.event_id for _, event, _ in publisher.sent}) == 1


async def test_each_period_has_thresholds_of_its_own(thresholds: Thresholds, publisher: Publisher) -> None:
    ledger = Ledger(StandInStore(), spent_so_far=_nothing)
    meters = [meter_of(ledger, START_US + number * 1_000_000) for number in range(2)]
    for meter in meters:
        thresholds.watch(meter, budget(), None)
        thresholds.on_spent(meter, 50)
    await thresholds.close(1)
    assert len({event.event_id for _, event, _ in publisher.sent}) == 2


async def test_meter_that_nobody_watches_tells_nothing(thresholds: Thresholds, publisher: Publisher) -> None:
    thresholds.on_spent(meter_of(), 100)
    thresholds.on_exhausted(meter_of())
    await thresholds.close(1)
    assert publisher.sent == []


async def test_meter_of_a_past_period_is_forgotten_with_its_last_user(thresholds: Thresholds) -> None:
    meter = meter_of()
    thresholds.watch(meter, budget(), None)
    assert len(thresholds._watched) == 1
    del meter
    gc.collect()
    assert len(thresholds._watched) == 0


async def test_end_waits_for_what_is_being_told_but_not_for_ever(thresholds: Thresholds, publisher: Publisher) -> None:
    meter = meter_of()
    thresholds.watch(meter, budget(), None)
    publisher.gate.clear()
    thresholds.on_spent(meter, 50)
    closing = asyncio.create_task(thresholds.close(10))
    await asyncio.sleep(0.01)
    assert not closing.done()
    publisher.gate.set()
    await closing
    publisher.gate.clear()
    thresholds.on_spent(meter, 80)
    await thresholds.close(0.01)
    publisher.gate.set()
    await thresholds.close(1)
    assert publisher.percents == [50, 80]
