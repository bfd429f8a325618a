"""Counting, snapshots, merging and the Prometheus text."""

import asyncio
import time

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluicegate.edge.metrics import FAMILIES, Histogram, Metrics, Snapshot, merge, render, sample_loop_lag
from sluicegate.edge.wire.usage import TokenUsage


def _samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def _usage() -> TokenUsage:
    usage = TokenUsage()
    usage.input, usage.cached_input, usage.output, usage.reasoning = 10, 2, 7, 1
    return usage


def _busy() -> Metrics:
    metrics = Metrics()
    metrics.in_flight = 3
    metrics.connections = 5
    metrics.count_request("chat_completions", 200, "success")
    metrics.count_request("chat_completions", 200, "success")
    metrics.count_request("chat_completions", 502, "provider_error")
    metrics.count_tokens(_usage())
    metrics.count_auth_failure("invalid_key")
    metrics.count_attempt("prv_1", 200)
    metrics.count_attempt("prv_1", 204)
    metrics.count_attempt("prv_1", None)
    metrics.gateway_overhead.observe(120)
    metrics.gateway_overhead.observe(10_000_000)
    return metrics


@pytest.mark.parametrize(("value", "bucket"), [(0, 0), (10, 0), (11, 1), (20, 1), (21, 2)])
def test_histogram_counts_a_value_below_the_first_bound_that_is_not_smaller(value: int, bucket: int) -> None:
    histogram = Histogram((10, 20))
    histogram.observe(value)
    assert [i for i, count in enumerate(histogram.counts) if count] == [bucket]
    assert histogram.sum_us == value


def test_snapshot_survives_the_wire() -> None:
    snapshot = _busy().snapshot()
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot


def test_render_shows_what_was_counted() -> None:
    snapshot = _busy().snapshot()
    samples = _samples(render(merge([snapshot]), {0: snapshot.per_worker}))

    def value(name: str, **labels: str) -> float:
        return samples["sluicegate_edge_" + name, tuple(sorted(labels.items()))]

    assert value("requests_total", endpoint="chat_completions", status="200", outcome="success") == 2
    assert value("requests_total", endpoint="chat_completions", status="502", outcome="provider_error") == 1
    assert value("tokens_total", kind="input") == 10
    assert value("tokens_total", kind="reasoning") == 1
    assert value("auth_failures_total", reason="invalid_key") == 1
    assert value("provider_attempts_total", provider="prv_1", status="2xx") == 2
    assert value("provider_attempts_total", provider="prv_1", status="none") == 1
    assert value("connections_total") == 5
    assert value("in_flight_requests", worker="0") == 3
    assert value("process_resident_memory_bytes", worker="0") > 1e6
    assert value("process_cpu_seconds_total", worker="0") > 0
    assert value("gateway_overhead_seconds_bucket", le="0.00005") == 0
    assert value("gateway_overhead_seconds_bucket", le="0.0001") == 0
    assert value("gateway_overhead_seconds_bucket", le="0.00015") == 1
    assert value("gateway_overhead_seconds_bucket", le="0.25") == 1
    assert value("gateway_overhead_seconds_bucket", le="+Inf") == 2
    assert value("gateway_overhead_seconds_count") == 2
    assert value("gateway_overhead_seconds_sum") == pytest.approx(10.00012)


def test_merge_adds_up_workers_and_leaves_their_own_numbers_out() -> None:
    snapshot = _busy().snapshot()
    total = merge([snapshot, snapshot])
    assert dict(total.counters["requests_total"])["chat_completions", "200", "success"] == 4
    assert sum(total.histograms["gateway_overhead_seconds"].counts) == 4
    assert total.per_worker == {}
    assert merge([merge([snapshot]), snapshot]) == total


def test_merge_of_nothing_renders_nothing() -> None:
    assert _samples(render(merge([]), {})) == {}


def test_watch_reads_its_owner_at_each_snapshot() -> None:
    numbers = {"bytes": 1, "events": 10}
    metrics = Metrics()
    metrics.watch("journal_bytes", lambda: numbers["bytes"])
    metrics.watch("journal_published_events_total", lambda: numbers["events"])
    metrics.snapshot()
    numbers["bytes"] = 2
    snapshot = metrics.snapshot()
    assert snapshot.per_worker["journal_bytes"] == 2
    assert snapshot.counters["journal_published_events_total"] == [((), 10)]


@pytest.mark.parametrize(("name", "error"), [("journal_bites", KeyError), ("requests_total", ValueError)])
def test_watch_refuses_a_family_it_cannot_fill(name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Metrics().watch(name, lambda: 0)


def test_labels_are_escaped() -> None:
    metrics = Metrics()
    metrics.count_auth_failure('a"b\\c\nd')
    samples = _samples(render(merge([metrics.snapshot()]), {}))
    assert samples["sluicegate_edge_auth_failures_total", (("reason", 'a"b\\c\nd'),)] == 1


def test_families_are_named_as_prometheus_asks() -> None:
    for family in FAMILIES:
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.kind != "histogram" or family.name.endswith("_seconds")
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


async def test_loop_lag_is_counted_when_something_blocks_the_loop() -> None:
    metrics = Metrics()
    sampling = asyncio.create_task(sample_loop_lag(metrics, interval_s=0.001))
    await asyncio.sleep(0)
    time.sleep(0.02)
    while not sum(metrics.loop_lag.counts):
        await asyncio.sleep(0.001)
    sampling.cancel()
    assert metrics.loop_lag.sum_us > 15_000
