"""The load driver as a pinned child, and one sample: how much CPU a contender spent on a kind of traffic."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.compare.contenders import HARNESS_CORE, Contender
from benchmarks.compare.modes import Mode
from benchmarks.compare.processes import machine_busy_seconds, settle, total_cpu_seconds
from sluicegate.devstack.load.job import Job, Result, chat_body

_BUSY = 0.9


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one mode through one contender. Shares are of one core, over the run."""

    contender: str
    mode: str
    answered: int
    errors: dict[str, int]
    requests_per_s: float
    cpu_us_per_request: float
    proxy_share: float
    driver_share: float
    provider_share: float
    neighbour_share: float
    foreign_share: float
    """Everything else that ran on the machine meanwhile."""
    limit: str
    """Who kept the run from going faster: the proxy, the harness, or the pace that the traffic itself has."""
    result: Result


class Harness:
    """Runs modes through contenders, one at a time."""

    def __init__(self, child: subprocess.Popen[bytes], provider_pids: list[int]) -> None:
        self._child = child
        self._provider_pids = provider_pids
        self._decoder = msgspec.json.Decoder(Result)

    def run(self, job: Job) -> Result:
        """One job on the pinned driver."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(msgspec.json.encode(job) + b"\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError("the load driver ended")
        return self._decoder.decode(line)

    def sample(self, contender: Contender, mode: Mode, *, seconds: float | None = None) -> Sample:
        """Measures one mode through one contender, from quiet to quiet: what it does afterwards counts as well."""
        settle([*contender.pids, *contender.neighbours])
        watch = {"proxy": contender.pids, "provider": self._provider_pids, "neighbours": contender.neighbours}
        busy_s = machine_busy_seconds()
        result = self.run(
            Job(
                url=contender.chat_url,
                body=chat_body(contender.model, is_streamed=mode.expects == "stream", fake=mode.fake),
                headers=contender.headers,
                expects=mode.expects,
                events=mode.events,
                connections=mode.connections,
                is_kept=mode.is_kept,
                seconds=seconds or mode.seconds,
                requests=mode.requests,
                watch=watch,
            )
        )
        busy_s = machine_busy_seconds() - busy_s
        at_end_s = total_cpu_seconds(contender.pids)
        settle([*contender.pids, *contender.neighbours])
        afterwards_s = total_cpu_seconds(contender.pids) - at_end_s
        return _sample(contender, mode, result, busy_s, afterwards_s)


def _sample(contender: Contender, mode: Mode, result: Result, busy_s: float, afterwards_s: float) -> Sample:
    share = {name: cpu_s / result.wall_s for name, cpu_s in result.watched_cpu_s.items()}
    driver = result.driver_cpu_s / result.wall_s
    harness = driver + share["provider"] + share["neighbours"]
    is_paced = "pace_ms" in mode.fake and max(share["proxy"], harness) < _BUSY
    return Sample(
        contender=contender.name,
        mode=mode.name,
        answered=result.answered,
        errors=result.errors,
        requests_per_s=result.answered / result.wall_s,
        cpu_us_per_request=(result.watched_cpu_s["proxy"] + afterwards_s) * 1e6 / max(result.answered, 1),
        proxy_share=share["proxy"],
        driver_share=driver,
        provider_share=share["provider"],
        neighbour_share=share["neighbours"],
        foreign_share=max(busy_s / result.wall_s - harness - share["proxy"], 0.0),
        limit="pace" if is_paced else "proxy" if share["proxy"] >= harness else "harness",
        result=result,
    )


@contextmanager
def harness(folder: Path, provider_pids: list[int]) -> Iterator[Harness]:
    """A driver process on the harness's core."""
    argv = [sys.executable, "-m", "sluicegate.devstack.load", "--core", str(HARNESS_CORE)]
    with (folder / "driver.log").open("wb") as log:
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    with child:  # which closes its input, and that is its end
        yield Harness(child, provider_pids)
