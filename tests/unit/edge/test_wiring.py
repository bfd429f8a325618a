"""What an edge process says of the store of its limits while it runs."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from sluicegate.edge import wiring
from sluicegate.ledger.ledger import Ledger


async def test_outage_is_logged_when_it_begins_and_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str]] = []
    log = SimpleNamespace(
        warning=lambda event, **_: said.append(("warning", event)), info=lambda event, **_: said.append(("info", event))
    )
    monkeypatch.setattr(wiring, "_log", log)
    ledger = SimpleNamespace(state="ok")
    telling = asyncio.create_task(wiring.tell_of_outages(cast(Ledger, ledger), "local-share", every_s=0))
    for state in ("ok", "degraded", "degraded", "ok", "ok"):
        ledger.state = state
        for _ in range(3):
            await asyncio.sleep(0)
    telling.cancel()
    assert said == [
        ("warning", "Valkey does not answer; limits go on from leases, then by the policy"),
        ("info", "Valkey answers again"),
    ]
