"""A fault of our own, anywhere in a request: it ends that request alone, and nothing that it had taken is kept."""

import asyncio
from typing import Any, Final

import pytest

from sluicegate.devstack.edge_process import EdgeUnderTest, until
from sluicegate.devstack.limited_edge import SCOPES, LimitedEdge
from sluicegate.devstack.raw_http import DEADLINE_S, chat
from sluicegate.edge.metrics import Metrics
from sluicegate.edge.mirrors.limits import Bounds
from sluicegate.edge.mirrors.view import View
from sluicegate.edge.outbound.connection import ProviderConnection
from sluicegate.edge.phases import admit, order, relay, reserve, settle
from sluicegate.edge.phases.answers.document import DocumentAnswer
from sluicegate.edge.phases.answers.stream import StreamAnswer

# Who fails.
BEFORE_THE_PROVIDER: Final = (
    (order, "classify"),
    (order, "route"),
    (View, "bounds"),
    (View, "target_bounds"),
    (reserve, "cost_nano_usd"),
    (admit, "take"),
    (admit, "price_at"),
    (admit, "shared_halves"),
    (admit, "admitted_record"),
    (order, "Relay"),
    (relay, "changes_to_chat"),
    (relay, "request_head"),
    (ProviderConnection, "send"),
)
WHILE_IT_ANSWERS: Final = (
    (relay, "DocumentAnswer"),
    (DocumentAnswer, "take"),
    (DocumentAnswer, "_head"),
    (relay, "StreamAnswer"),
    (StreamAnswer, "take"),
    (StreamAnswer, "_head"),
    (StreamAnswer, "_finish"),
    (Bounds, "header_lines"),
    (Metrics, "count_attempt"),
)
AT_THE_END: Final = (
    (settle, "_say_where"),
    (settle, "_cost"),
    (settle, "finished_record"),
    (settle, "settle_reservations"),
    (Metrics, "count_request"),
    (Metrics, "count_times"),
    (Metrics, "count_tokens"),
)


class Fault:
    """Fails the first time it is called."""

    def __init__(self, true: Any) -> None:
        self._true = true
        self.has_failed = False

    def __get__(self, owner: Any, _: type | None = None) -> Any:
        return self if owner is None else lambda *arguments, **named: self(owner, *arguments, **named)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError("a fault of ours")
        return self._true(*arguments, **named)


@pytest.mark.parametrize("places", [BEFORE_THE_PROVIDER, WHILE_IT_ANSWERS, AT_THE_END])
@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_is_kept_when_a_phase_fails(
    limited: LimitedEdge, monkeypatch: pytest.MonkeyPatch, places: tuple[tuple[Any, str], ...], stream: bool
) -> None:
    for scope in SCOPES:
        limited.limit(scope, open_requests=2)
    limited.budget("key", 1_000_000_000_000, id="bud_key")
    edge = limited.edge
    assert (await limited.ask(user="ann", stream=stream)).status == 200
    failed = 0
    for owner, name in places:
        known = len(edge.records)
        with monkeypatch.context() as patch:
            fault = Fault(getattr(owner, name))
            patch.setattr(owner, name, fault)
            async with edge.client() as client:
                whole = chat(key=edge.key, user="ann", stream=stream, max_tokens=10, headers="connection: close\r\n")
                client.send(whole)
                # Answered or cut off: it does not wait for ever.
                async with asyncio.timeout(DEADLINE_S):
                    answer = await client.reader.read(-1)
                await until(lambda: _is_all_free(limited))
        assert answer.startswith(b"HTTP/1.1 ") or places is not BEFORE_THE_PROVIDER, (owner, name)
        failed += fault.has_failed
        if places is not AT_THE_END:  # where the record itself may be what failed
            assert len(edge.records) == known + 1, (owner, name)
    assert failed >= len(places) - 4  # the answers of the other kind
    assert (await limited.ask(user="ann", stream=stream)).status == 200


def _is_all_free(limited: LimitedEdge) -> bool:
    """Tell whether no place and no money is taken, and no connection to the provider is lost."""
    edge: EdgeUnderTest = limited.edge
    taken = limited.taken("ann")
    lost = [one for pool in edge.edge.pools._pools.values() for one in pool._open_ones - set(pool._idle)]
    is_empty = not (edge.edge.open_exchanges or edge.edge.waiting or edge.edge.buffered_bytes or lost)
    return is_empty and not any(count for (resource, _), count in taken.items() if resource in {"open", "budget"})
