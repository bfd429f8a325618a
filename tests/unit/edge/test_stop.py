"""The end of an edge process: each step is taken, whatever became of the one before it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import SecretStr

from sluicegate.edge.config import EdgeSettings
from sluicegate.edge.wiring import EdgeProcess
from sluicegate.runtime.key_ring import KeyRing

STEPS = ["ledger", "store", "thresholds", "journal"]


@pytest.mark.parametrize("failing", STEPS)
async def test_stop_goes_on_when_one_step_fails(failing: str) -> None:
    taken: list[str] = []

    def step(name: str) -> Any:
        async def close(*_: float) -> None:
            taken.append(name)
            if name == failing:
                raise ConnectionResetError(name)

        return close

    settings = EdgeSettings(
        nats_url=SecretStr("nats://nowhere:1"),
        redis_url=SecretStr("redis://nowhere:1"),
        key_ring=SecretStr(KeyRing.generate()),
    )
    process = EdgeProcess(settings, set)
    parts = cast(Any, process)
    parts._ledger = SimpleNamespace(close=step("ledger"), store=SimpleNamespace(close=step("store")))
    parts._thresholds = SimpleNamespace(close=step("thresholds"))
    parts._journal = SimpleNamespace(close=step("journal"))
    await process.stop()
    assert taken == STEPS
