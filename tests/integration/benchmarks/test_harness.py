"""The harness against a real nginx: what is measured is answered, checked, and the same on every way."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from benchmarks.compare import contenders
from benchmarks.compare.contenders import Contender
from benchmarks.compare.harness import Harness, harness
from benchmarks.compare.modes import CPU_MODES, LATENCY_MODES, Mode
from benchmarks.compare.processes import listener

Ways = tuple[Harness, Contender, Contender]


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    folder = tmp_path_factory.mktemp("harness")
    with ExitStack() as stack:
        url = stack.enter_context(contenders.provider(folder))
        provider_pid = listener(contenders.port_of(url))
        assert provider_pid
        nginx = stack.enter_context(contenders.nginx(url, folder))
        yield stack.enter_context(harness(folder, [provider_pid])), contenders.direct(url), nginx


@pytest.mark.parametrize("mode", [*CPU_MODES, *LATENCY_MODES], ids=lambda mode: f"{mode.name}-{mode.connections}")
def test_every_mode_is_answered_alike_with_and_without_nginx(ways: Ways, mode: Mode) -> None:
    load, direct, nginx = ways
    few = replace(
        mode, connections=min(mode.connections, 2), requests=6, fake=mode.fake.replace("pace_ms=20", "pace_ms=1")
    )
    bare, through = load.sample(direct, few, seconds=60), load.sample(nginx, few, seconds=60)
    assert (bare.answered, bare.errors) == (6, {})
    assert (through.answered, through.errors) == (6, {})
    assert bare.result.body_digests == through.result.body_digests
    assert through.cpu_us_per_request > 0
    assert bare.cpu_us_per_request == 0
