"""The supervisor as a process of its own, over workers that misbehave on demand."""

import http.client
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluicegate.devstack.servers.ports import free_port
from sluicegate.devstack.servers.process import ChildProcess, spawn

DEADLINE_S = 30.0
SCRIPT = Path(__file__).with_name("run_supervisor.py")


class Edge:
    """A running supervisor and what its ports say."""

    def __init__(self, process: ChildProcess, port: int, internal_port: int) -> None:
        self.process = process
        self.port = port
        self.internal_port = internal_port

    def get(self, port: int, path: str) -> "Answer":
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return Answer(response.status, response.read())
        finally:
            connection.close()

    def ready(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.get(self.internal_port, "/readyz").body)
        return report

    def is_ready(self) -> bool:
        try:
            return self.get(self.internal_port, "/readyz").status == 200
        except OSError:
            return False

    def pids(self) -> list[int]:
        return [worker["pid"] for worker in self.ready()["workers"]]

    def samples(self) -> dict[tuple[str, str], float]:
        """Metric values by name and the value of their last label."""
        text = self.get(self.internal_port, "/metrics").body.decode()
        return {
            (sample.name.removeprefix("sluicegate_edge_"), next(reversed(sample.labels.values()), "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


class Answer(NamedTuple):
    status: int
    body: bytes


StartEdge = Callable[..., Edge]


@pytest.fixture
def start_edge(tmp_path: Path) -> Iterator[StartEdge]:
    """Starts supervisors; `fault` is one of the fake worker's, other arguments are settings."""
    started: list[Edge] = []

    def start(fault: str = "", *, port: int | None = None, wait: bool = True, **settings: object) -> Edge:
        internal_port = free_port()
        port = free_port() if port is None else port
        environment = {
            **os.environ,
            "SLUICEGATE_NATS_URL": "nats://unused:unused@127.0.0.1:1",
            "SLUICEGATE_REDIS_URL": "redis://unused:6379",
            "SLUICEGATE_KEY_RING": "k1:" + "A" * 43 + "=",
            "SLUICEGATE_EDGE_HOST": "127.0.0.1",
            "SLUICEGATE_EDGE_PORT": str(port),
            "SLUICEGATE_EDGE_INTERNAL_HOST": "127.0.0.1",
            "SLUICEGATE_EDGE_INTERNAL_PORT": str(internal_port),
            "SLUICEGATE_EDGE_WORKERS": "2",
            **{f"SLUICEGATE_EDGE_{name.upper()}": str(value) for name, value in settings.items()},
        }
        log_path = tmp_path / f"edge-{len(started)}.log"
        command = [sys.executable, str(SCRIPT), *([fault] if fault else [])]
        edge = Edge(spawn(command, log_path=log_path, env=environment), port, internal_port)
        started.append(edge)
        if wait:
            wait_until(edge.is_ready, edge)
        return edge

    yield start
    for edge in started:
        edge.process.kill()


def wait_until(condition: Callable[[], bool], edge: Edge) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, edge.process.log_tail(40)
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def replaced(edge: Edge, pid: int) -> bool:
    report = edge.ready()
    return report["ready"] and pid not in [worker["pid"] for worker in report["workers"]]


def test_workers_share_the_port_and_readyz_names_their_pids(start_edge: StartEdge) -> None:
    edge = start_edge(workers=3)
    pids = edge.pids()
    assert len(set(pids)) == 3
    assert all(is_running(pid) for pid in pids)
    served = {int(edge.get(edge.port, "/").body) for _ in range(200)}
    assert served == set(pids)
    assert edge.get(edge.internal_port, "/livez") == (200, b"ok\n")


def test_port_is_chosen_by_the_system_when_it_is_zero(start_edge: StartEdge) -> None:
    edge = start_edge(port=0)
    chosen = edge.ready()["port"]
    assert chosen != 0
    assert int(edge.get(chosen, "/").body) in edge.pids()


def test_worker_is_replaced_when_it_is_killed(start_edge: StartEdge) -> None:
    edge = start_edge()
    before = edge.pids()
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: replaced(edge, before[0]), edge)
    assert edge.pids()[1] == before[1]
    assert [worker["restarts"] for worker in edge.ready()["workers"]] == [1, 0]
    assert {int(edge.get(edge.port, "/").body) for _ in range(100)} == set(edge.pids())


def test_other_workers_serve_every_client_while_one_is_dead(start_edge: StartEdge) -> None:
    edge = start_edge()
    dead, alive = edge.pids()
    os.kill(dead, signal.SIGKILL)
    wait_until(lambda: edge.ready()["workers"][0]["pid"] != dead, edge)
    first = {int(edge.get(edge.port, "/").body) for _ in range(5)}
    assert alive in first
    assert dead not in first


def test_worker_is_killed_and_replaced_when_it_hangs(start_edge: StartEdge) -> None:
    edge = start_edge(worker_hang_timeout_s=2)
    hung = edge.pids()[0]
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: not edge.is_ready(), edge)
    wait_until(lambda: replaced(edge, hung), edge)
    assert not is_running(hung)
    assert edge.samples()["worker_restarts_total", "hung"] == 1


def test_worker_lives_on_when_it_is_so_busy_that_it_answers_late(start_edge: StartEdge) -> None:
    edge = start_edge("busy", workers=1, worker_hang_timeout_s=10)
    (busy,) = edge.pids()
    for _ in range(2):
        wait_until(lambda: not edge.is_ready(), edge)
        wait_until(edge.is_ready, edge)
    assert edge.pids() == [busy]


def test_worker_is_replaced_when_it_never_answers(start_edge: StartEdge) -> None:
    edge = start_edge("mute", wait=False, workers=1, worker_start_timeout_s=1)
    wait_until(lambda: "not_started" in edge.process.log_tail(40), edge)
    assert not edge.is_ready()


def test_crashing_worker_is_retried_ever_more_slowly(start_edge: StartEdge) -> None:
    edge = start_edge("crash", wait=False, workers=1)
    wait_until(lambda: edge.process.log_tail(200).count('"worker ended"') >= 4, edge)
    lines = [json.loads(line) for line in edge.process.log_tail(200).splitlines() if '"worker ended"' in line]
    waits = [line["next_in_s"] for line in lines]
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert lines[0]["status"] == 3
    assert edge.get(edge.internal_port, "/livez").status == 200
    assert edge.get(edge.internal_port, "/readyz").status == 503


@pytest.mark.parametrize("fault", ["", "stubborn"])
def test_workers_end_when_the_supervisor_is_killed(start_edge: StartEdge, fault: str) -> None:
    edge = start_edge(fault)
    pids = edge.pids()
    edge.process.signal(signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, pids)), edge)


def test_stopped_worker_ends_when_the_supervisor_is_killed_and_it_goes_on(start_edge: StartEdge) -> None:
    edge = start_edge()
    pids = edge.pids()
    os.kill(pids[0], signal.SIGSTOP)
    edge.process.signal(signal.SIGKILL)
    wait_until(lambda: not is_running(pids[1]), edge)
    os.kill(pids[0], signal.SIGCONT)
    wait_until(lambda: not is_running(pids[0]), edge)


@pytest.mark.parametrize("is_shared", [False, True])
def test_start_is_refused_when_the_port_is_taken(start_edge: StartEdge, is_shared: bool) -> None:
    with socket.socket() as stranger:
        if is_shared:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        edge = start_edge(port=port, wait=False)
        wait_until(lambda: not edge.process.is_running, edge)
        assert edge.process.exit_status() == 1
        assert f"port {port} on 127.0.0.1 is taken by another program" in edge.process.log_tail()


def test_start_is_refused_when_the_internal_port_is_taken(start_edge: StartEdge) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        edge = start_edge(wait=False, internal_port=stranger.getsockname()[1])
        wait_until(lambda: not edge.process.is_running, edge)
        assert edge.process.exit_status() == 1
        assert "internal port" in edge.process.log_tail()


def test_second_stack_is_refused_even_when_the_first_has_no_worker(start_edge: StartEdge) -> None:
    first = start_edge("crash", wait=False)
    wait_until(lambda: "worker ended" in first.process.log_tail(), first)
    second = start_edge(port=first.port, wait=False)
    wait_until(lambda: not second.process.is_running, second)
    assert second.process.exit_status() == 1


def test_port_is_free_for_the_next_start_right_after_a_stop(start_edge: StartEdge) -> None:
    first = start_edge()
    assert first.get(first.port, "/").status == 200  # leaves a connection in TIME_WAIT
    first.process.signal(signal.SIGTERM)
    wait_until(lambda: not first.process.is_running, first)
    second = start_edge(port=first.port)
    assert second.get(second.port, "/").status == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_finishes_open_requests_and_exits_with_zero(start_edge: StartEdge, number: signal.Signals) -> None:
    edge = start_edge(drain_delay_s=1)
    pids = edge.pids()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(edge.get, edge.port, "/slow")
        wait_until(
            lambda: (
                edge.samples().get(("in_flight_requests", "0")) == 1
                or edge.samples().get(("in_flight_requests", "1")) == 1
            ),
            edge,
        )
        edge.process.signal(number)
        wait_until(lambda: not edge.is_ready(), edge)
        # Still alive, still serving, and the workers have been told.
        assert edge.get(edge.internal_port, "/livez").status == 200
        report = edge.ready()
        assert (report["ready"], report["draining"]) == (False, True)
        assert int(edge.get(edge.port, "/").body) in pids
        assert slow.result().status == 200
    wait_until(lambda: not edge.process.is_running, edge)
    assert edge.process.exit_status() == 0
    assert not any(map(is_running, pids))


def test_workers_are_told_before_they_are_stopped(start_edge: StartEdge) -> None:
    edge = start_edge(drain_delay_s=5)
    edge.process.signal(signal.SIGTERM)
    wait_until(lambda: all(worker["detail"] == "drained 1" for worker in edge.ready()["workers"]), edge)


def test_worker_that_does_not_end_is_killed_when_the_time_is_over(start_edge: StartEdge) -> None:
    edge = start_edge("stubborn", shutdown_timeout_s=0)
    pids = edge.pids()
    edge.process.signal(signal.SIGTERM)
    wait_until(lambda: not edge.process.is_running, edge)
    assert edge.process.exit_status() == 0
    assert not any(map(is_running, pids))


def test_second_interrupt_ends_everything_at_once(start_edge: StartEdge) -> None:
    edge = start_edge("stubborn", drain_delay_s=3600, shutdown_timeout_s=3600)
    pids = edge.pids()
    edge.process.signal(signal.SIGINT)
    wait_until(lambda: edge.ready()["draining"], edge)
    edge.process.signal(signal.SIGINT)
    wait_until(lambda: not edge.process.is_running, edge)
    assert edge.process.exit_status() == 130
    assert not any(map(is_running, pids))


def test_second_sigterm_changes_nothing(start_edge: StartEdge) -> None:
    edge = start_edge(drain_delay_s=1)
    edge.process.signal(signal.SIGTERM)
    wait_until(lambda: edge.ready()["draining"], edge)
    edge.process.signal(signal.SIGTERM)
    wait_until(lambda: not edge.process.is_running, edge)
    assert edge.process.exit_status() == 0


def test_metrics_are_the_sums_of_all_workers_and_survive_one_of_them(start_edge: StartEdge) -> None:
    edge = start_edge()
    for _ in range(50):
        assert edge.get(edge.port, "/").status == 200

    def counted() -> float:
        return edge.samples().get(("requests_total", "success"), 0)

    wait_until(lambda: counted() == 50, edge)
    assert {edge.samples()["worker_up", str(index)] for index in range(2)} == {1}
    killed = edge.pids()[0]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: replaced(edge, killed), edge)
    assert edge.get(edge.port, "/").status == 200
    wait_until(lambda: edge.samples().get(("worker_restarts_total", "exited")) == 1, edge)
    wait_until(lambda: counted() == 51, edge)


def test_metrics_mark_a_worker_that_does_not_answer(start_edge: StartEdge) -> None:
    edge = start_edge(worker_hang_timeout_s=3600)
    for _ in range(20):
        assert edge.get(edge.port, "/").status == 200
    wait_until(lambda: edge.samples().get(("requests_total", "success")) == 20, edge)
    os.kill(edge.pids()[1], signal.SIGSTOP)
    wait_until(lambda: edge.samples()["worker_up", "1"] == 0, edge)
    samples = edge.samples()
    assert samples["worker_up", "0"] == 1
    assert samples["requests_total", "success"] == 20
    assert ("in_flight_requests", "1") not in samples
