"""What the internal port says of slots in every state."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from sluicegate.edge.metrics import Metrics, Snapshot, merge
from sluicegate.edge.supervisor.answers import EdgeHealth, EdgeMetrics
from sluicegate.edge.supervisor.slot import WorkerLimits, WorkerSlot
from sluicegate.edge.worker_port import WorkerState


class FakeSlot(WorkerSlot):
    """A slot whose worker has answered `count` requests, or does not answer."""

    def __init__(self, index: int, count: int | None = None, *, ready: bool = True) -> None:
        super().__init__(index, (), {}, Path(), WorkerLimits(1, 1))
        self.count = count
        self.asked = 0
        if count is not None:
            self.state = WorkerState(pid=100 + index, ready=ready, detail="fine")

    async def refresh_snapshot(self, timeout_s: float) -> bool:
        self.asked += 1
        if self.count is None:
            return False
        metrics = Metrics()
        for _ in range(self.count):
            metrics.count_request("chat_completions", 200, "success")
        self.snapshot = metrics.snapshot()
        return True


def _values(text: bytes) -> dict[str, float]:
    return {
        sample.name.removeprefix("sluicegate_edge_") + "".join(sample.labels.get("worker", "")): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_edge_is_ready_when_all_workers_are() -> None:
    health = EdgeHealth([FakeSlot(0, 1), FakeSlot(1, 1)], 8080)
    assert health.is_ready
    report = health.report()
    assert (report["ready"], report["draining"], report["port"]) == (True, False, 8080)
    assert [worker["ready"] for worker in report["workers"]] == [True, True]


async def test_edge_is_not_ready_when_one_worker_is_not() -> None:
    assert not EdgeHealth([FakeSlot(0, 1), FakeSlot(1, 1, ready=False)], 8080).is_ready
    health = EdgeHealth([FakeSlot(0, 1), FakeSlot(1)], 8080)
    assert not health.is_ready
    assert health.report()["workers"][1] == {
        "index": 1,
        "pid": None,
        "ready": False,
        "detail": "starting",
        "restarts": 0,
    }


async def test_edge_is_not_ready_when_it_drains() -> None:
    health = EdgeHealth([FakeSlot(0, 1)], 8080)
    health.is_draining = True
    assert not health.is_ready
    assert health.report()["workers"][0]["ready"] is False


async def test_metrics_ask_the_workers_once_when_they_are_scraped_twice_at_a_time() -> None:
    slots = [FakeSlot(0, 2), FakeSlot(1, 3)]
    metrics = EdgeMetrics(slots)
    values = _values(await metrics())
    assert await metrics() == await metrics()
    assert [slot.asked for slot in slots] == [1, 1]
    assert values["requests_total"] == 5
    assert (values["worker_up0"], values["worker_up1"]) == (1, 1)


async def test_metrics_keep_what_a_worker_counted_when_it_is_gone_or_silent() -> None:
    gone, silent = FakeSlot(0), FakeSlot(1)
    counted = Metrics()
    counted.count_request("chat_completions", 200, "success")
    gone.retired = merge([counted.snapshot()])
    gone.ended = {"hung": 2}
    silent.snapshot = counted.snapshot()
    values = _values(await EdgeMetrics([gone, silent])())
    assert values["requests_total"] == 2
    assert (values["worker_up0"], values["worker_up1"]) == (0, 0)
    assert values["worker_restarts_total"] == 2
    assert "in_flight_requests1" not in values


async def test_metrics_of_nothing_are_valid() -> None:
    slot = FakeSlot(0)
    slot.retired = Snapshot()
    assert _values(await EdgeMetrics([slot])()) == {"worker_up0": 0, "worker_ready0": 0}
