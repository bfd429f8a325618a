"""The load driver against a provider in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from sluicegate.devstack.load.driver import Driver
from sluicegate.devstack.load.job import Job, Result, chat_body


@pytest.fixture(scope="module")
def provider() -> Iterator[tuple[str, int]]:
    argv = [sys.executable, "-m", "sluicegate.devstack.fake_provider", "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield child.stdout.readline().split()[-1], child.pid
        child.terminate()


def run(url: str, *, stream: bool = False, fake: str = "", **options: object) -> Result:
    body = chat_body("fake-gpt", is_streamed=stream, fake=fake)
    expects = "stream" if stream else "json"
    return Driver(
        msgspec.convert({"url": f"{url}/v1/chat/completions", "body": body, "expects": expects, **options}, Job)
    ).run()


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_every_request_is_answered_and_checked(provider: tuple[str, int], stream: bool, is_kept: bool) -> None:
    result = run(provider[0], stream=stream, connections=4, requests=200, is_kept=is_kept, seconds=60)
    assert (result.answered, result.errors) == (200, {})
    assert result.connections_opened == (4 if is_kept else 200)
    assert len(result.body_digests) == 1
    assert result.latency is not None


def test_events_in_writes_of_their_own_are_one_answer(provider: tuple[str, int]) -> None:
    result = run(provider[0], stream=True, fake="events=30&write=each&pace_ms=1", events=30, connections=8, requests=16)
    assert (result.answered, result.errors) == (16, {})
    assert result.tail is not None
    assert result.first_byte is not None
    assert result.tail.p50_us > result.first_byte.p50_us


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        ("events=5", "5 events, not 12"),
        ("cut_at=3", "closed before the end"),
        ("cut_head=1", "closed without an answer"),
        ("status=503", "status 503: None"),
        ("cut_at=3&cut=rst&pace_ms=1", "receive: ConnectionResetError"),
        ("silence=request", "timeout"),
    ],
)
def test_wrong_answer_is_counted_by_its_reason(provider: tuple[str, int], fake: str, reason: str) -> None:
    result = run(provider[0], stream=True, fake=fake, connections=2, requests=4, timeout_s=0.4, seconds=30)
    assert result.answered == 0
    assert result.errors == {reason: 4}


def test_open_loop_starts_each_request_when_it_is_due(provider: tuple[str, int]) -> None:
    result = run(provider[0], rate_per_s=100.0, seconds=0.5, fake="ttft_ms=50")
    assert (result.answered, result.errors) == (50, {})
    assert result.connections_opened > 1
    assert result.lateness is not None


def test_request_ids_are_those_of_the_answers(provider: tuple[str, int]) -> None:
    result = run(provider[0], stream=True, connections=2, requests=20, wants_request_ids=True)
    assert result.request_ids is not None
    assert len(set(result.request_ids)) == 20
    assert all(request_id.startswith("fake-") for request_id in result.request_ids)


def test_watched_processes_have_their_cpu_time_read(provider: tuple[str, int]) -> None:
    result = run(
        provider[0], connections=8, requests=2_000, watch={"provider": [provider[1]], "nobody": []}, seconds=60
    )
    assert result.watched_cpu_s["provider"] > 0
    assert result.watched_cpu_s["nobody"] == 0


def test_refused_connection_is_an_error_and_not_the_end(provider: tuple[str, int]) -> None:
    assert provider
    result = run("http://127.0.0.1:9", requests=3, seconds=5)
    assert result.errors == {"connect: ConnectionRefusedError": 3}


def test_jobs_run_in_a_process_of_their_own_one_line_each(provider: tuple[str, int]) -> None:
    job = Job(url=f"{provider[0]}/v1/chat/completions", body=chat_body("m", is_streamed=False), requests=5, seconds=30)
    line = msgspec.json.encode(job) + b"\n"
    argv = [sys.executable, "-m", "sluicegate.devstack.load", "--core", str(min(os.sched_getaffinity(0)))]
    found = subprocess.run(argv, input=line * 2, capture_output=True, check=True, timeout=60)
    results = [msgspec.json.decode(text, type=Result) for text in found.stdout.splitlines()]
    assert [result.answered for result in results] == [5, 5]
