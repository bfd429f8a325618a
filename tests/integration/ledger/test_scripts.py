"""The scripts by themselves, on a real Valkey at times of the test's choice."""

from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.devstack.ledger_simulation.server import EPOCH_S, Server
from sluicegate.ledger.meters import cap_name, sum_name
from sluicegate.ledger.store import (
    AUDIT_SCRIPT,
    SEED_SCRIPT,
    SYNC_SCRIPT,
    Audit,
    Call,
    Line,
    Reply,
    Seed,
    alive_key,
    audit_arguments,
    read_audit,
    read_sync,
    seed_arguments,
    sync_arguments,
)

TAG = "all"
SUM = sum_name(TAG, "b", "k", 0)
CAP = cap_name(TAG, "open", "key", "k")
EPOCH_MS = EPOCH_S * 1000
END_MS = EPOCH_MS + 10**9

Sync = Callable[..., Reply]


def line(name: str = SUM, **values: Any) -> Line:
    defaults = {
        "name": name,
        "kind": "sum" if name == SUM else "cap",
        "limit": 1_000,
        "zero_from_ms": END_MS,
        "is_joined": False,
        "settled": 0,
        "hold": 0,
        "need": 0,
        "want": 0,
        "ttl_ms": 60_000 if name == SUM else 20_000,
        "leaves": False,
        "expire_at_ms": END_MS,
    }
    return Line(**{**defaults, **values})


@pytest.fixture
def sync(server: Server) -> Sync:
    """Sends a call of `process` at `at_s`."""

    def send(process: str, number: int, *lines: Line, at_s: float = 0, acked: int = 0, watermark_ms: int = 0) -> Reply:
        keys, arguments = sync_arguments(TAG, Call(process, number, acked, watermark_ms, lines))
        return read_sync(server.run_script(SYNC_SCRIPT, keys, arguments, at_s))

    return send


def audited(server: Server, recorded: int, read_at_s: float, at_s: float, *, is_complete: bool = True) -> Audit:
    read_at_ms = EPOCH_MS + int(read_at_s * 1000)
    arguments = audit_arguments(TAG, SUM, recorded, read_at_ms, is_complete=is_complete)
    return read_audit(server.run_script(AUDIT_SCRIPT, *arguments, at_s))


def stored(server: Server, key: str) -> dict[str, str]:
    return server.hashes([key])[0]


def test_need_is_granted_in_full_and_half_of_the_rest_beside_it(sync: Sync, server: Server) -> None:
    answer = sync("p", 1, line(need=100, want=10_000)).answers[0]
    assert answer == ("OK", 100 + 450, 0, 450, 1)
    assert stored(server, SUM)["p"] == "0 550"
    other = sync("q", 1, line(need=10, want=10_000)).answers[0]
    assert other == ("OK", 10 + 110, 0, 330, 2)  # two share what is left over
    assert sync("r", 1, line(need=500)).answers[0] == ("OK", 330, 0, 0, 3)
    assert sync("s", 1, line(need=1, want=1)).answers[0] == ("OK", 0, 0, 0, 4)


def test_hold_is_never_cut_when_the_limit_is_lower(sync: Sync, server: Server) -> None:
    sync("p", 1, line(need=600))
    answer = sync("p", 2, line(is_joined=True, hold=600, limit=500, need=10, want=10), acked=1).answers[0]
    assert answer == ("OK", 0, 0, -100, 1)
    assert stored(server, SUM)["p"] == "0 600"


def test_older_number_is_stale_and_writes_nothing(sync: Sync, server: Server) -> None:
    sync("p", 5, line(need=10))
    before = stored(server, SUM), stored(server, alive_key(TAG))
    for number in (5, 4):
        assert sync("p", number, line(is_joined=True, settled=999, hold=1), at_s=3).status == "STALE"
    assert (stored(server, SUM), stored(server, alive_key(TAG))) == before


def test_loss_is_answered_with_what_is_known_and_writes_nothing(sync: Sync, server: Server) -> None:
    sync("p", 5, line(need=10))
    server.flush()
    assert sync("p", 6, line(is_joined=True, hold=10), acked=5) == Reply("LOST", 0, [])
    assert stored(server, SUM) == {}
    assert stored(server, alive_key(TAG)) == {}
    assert sync("p", 7, line(is_joined=True, hold=10), acked=0).answers[0].code == "REJOIN"


def test_joining_again_folds_what_the_lost_join_left(sync: Sync, server: Server) -> None:
    sync("p", 1, line(need=100))
    sync("p", 2, line(is_joined=True, settled=40, hold=60), acked=1)
    answer = sync("p", 3, line(hold=60, need=5), acked=2).answers[0]
    assert answer.spent == 40
    assert stored(server, SUM)["b"] == "40"
    assert stored(server, SUM)["p"] == "0 65"


def test_leaving_folds_and_leaves_nothing_behind(sync: Sync, server: Server) -> None:
    sync("p", 1, line(need=100), line(CAP, need=1))
    sync("p", 2, line(is_joined=True, settled=70, leaves=True), line(CAP, is_joined=True, leaves=True), acked=1, at_s=9)
    assert stored(server, SUM) == {"b": "70", "t": str(EPOCH_MS + 9_000)}
    assert stored(server, CAP) == {}


def test_unknown_budget_is_missing_unless_the_store_is_older_than_its_period(sync: Sync, server: Server) -> None:
    sync("p", 1, at_s=0)  # born
    assert sync("p", 2, line(need=1, zero_from_ms=0), at_s=1).answers[0].code == "MISSING"
    assert sync("p", 3, line(need=1, zero_from_ms=EPOCH_MS + 59_999), at_s=60).answers[0].code == "MISSING"
    assert stored(server, SUM) == {}
    assert sync("p", 4, line(need=1, zero_from_ms=EPOCH_MS + 60_000), at_s=60).answers[0].code == "OK"
    assert stored(server, SUM)["b"] == "0"


def test_first_seed_wins(sync: Sync, server: Server) -> None:
    for spent in (250, 900):
        keys, arguments = seed_arguments(TAG, [Seed(SUM, spent, END_MS)])
        server.run_script(SEED_SCRIPT, keys, arguments, 0)
    answer = sync("p", 1, line(need=800, zero_from_ms=0)).answers[0]
    assert answer == ("OK", 750, 250, 0, 1)
    (expires_at,) = server._connection.run(["PEXPIRETIME", SUM])
    assert expires_at == END_MS


def test_dead_process_gives_up_a_capacity_but_not_a_budget(sync: Sync, server: Server) -> None:
    sync("dead", 1, line(need=900), line(CAP, need=900))
    answers = sync("p", 1, line(need=500), line(CAP, need=500), at_s=19.9).answers
    assert [answer.grant for answer in answers] == [100, 100]
    answers = sync("q", 1, line(need=500), line(CAP, need=500), at_s=20).answers
    assert [answer.grant for answer in answers] == [0, 500]
    assert "dead" not in stored(server, CAP)
    members = [sync("q", number, line(), at_s=at_s).answers[0].members for number, at_s in ((2, 59.9), (3, 60))]
    assert members == [3, 2]
    assert "dead" in stored(server, alive_key(TAG))
    sync("q", 4, at_s=80)
    assert set(stored(server, alive_key(TAG))) == {"p", "q"}
    assert stored(server, SUM)["dead"] == "0 900"


def test_watermark_never_goes_back(sync: Sync, server: Server) -> None:
    sync("p", 1, watermark_ms=EPOCH_MS + 500)
    sync("p", 2, acked=1, watermark_ms=0)
    assert stored(server, alive_key(TAG))["p"] == f"2 {EPOCH_MS} {EPOCH_MS + 500}"


def test_large_amounts_keep_every_digit(sync: Sync, server: Server) -> None:
    limit = 9_000_000 * 10**9
    sync("p", 1, line(limit=limit, need=limit - 1))
    assert stored(server, SUM)["p"] == f"0 {limit - 1}"
    sync("p", 2, line(limit=limit, is_joined=True, settled=limit - 2, hold=1), acked=1)
    sync("p", 3, line(limit=limit, is_joined=True, settled=limit - 1, leaves=True), acked=2)
    assert stored(server, SUM)["b"] == str(limit - 1)


def test_script_that_fails_half_way_has_not_run_for_its_process(sync: Sync, server: Server) -> None:
    server._connection.run(["SET", CAP, "not a hash"])
    with pytest.raises(Exception, match="WRONGTYPE"):
        sync("p", 1, line(need=100), line(CAP, need=1))
    assert stored(server, alive_key(TAG)) == {}
    server._connection.run(["DEL", CAP])
    assert [answer.grant for answer in sync("p", 2, line(need=100), line(CAP, need=1)).answers] == [100, 1]
    assert stored(server, SUM)["p"] == "0 100"


# --- the auditor -------------------------------------------------------------------------------------------------


def test_audit_leaves_a_missing_meter_alone(server: Server) -> None:
    assert audited(server, 500, 0, 10).state == "MISSING"
    assert stored(server, SUM) == {}


def test_audit_waits_for_a_process_that_may_still_bring_settlements(sync: Sync, server: Server) -> None:
    sync("p", 1, line(need=100), watermark_ms=EPOCH_MS)
    before = stored(server, SUM)
    assert audited(server, 50, 0, 10) == Audit("BUSY", 0, 0, 0)
    assert audited(server, 50, 0, 59.9).state == "BUSY"
    assert stored(server, SUM) == before
    assert audited(server, 50, 0, 60) == Audit("OK", 50, 50, 0)
    assert stored(server, SUM) == {"b": "50"}


def test_audit_keeps_a_process_that_has_brought_all_since_the_records_were_read(sync: Sync, server: Server) -> None:
    sync("p", 1, line(need=100))
    sync("p", 2, line(is_joined=True, settled=80, hold=20), acked=1, watermark_ms=EPOCH_MS + 7_000, at_s=7)
    assert audited(server, 50, 5, 15) == Audit("OK", 80, 0, 1)  # the records lag
    assert audited(server, 120, 5, 15) == Audit("OK", 120, 40, 1)  # somebody's spend is missing here
    assert stored(server, SUM)["b"] == "40"
    assert stored(server, SUM)["p"] == "80 20"
    assert audited(server, 120, 5, 15) == Audit("OK", 120, 0, 1)  # a second auditor does no harm


def test_audit_ends_a_record_that_holds_nothing(sync: Sync, server: Server) -> None:
    sync("p", 1, line(need=100))
    sync("p", 2, line(is_joined=True, settled=100, hold=0), acked=1, watermark_ms=EPOCH_MS)
    assert audited(server, 100, 0, 10) == Audit("OK", 100, 0, 0)
    assert set(stored(server, SUM)) == {"b", "t"}
    assert sync("p", 3, line(is_joined=True, settled=100, hold=0), acked=2).answers[0].code == "REJOIN"


def test_audit_corrects_downwards_only_a_quiet_meter(sync: Sync, server: Server) -> None:
    sync("p", 1, line(need=100))
    sync("p", 2, line(is_joined=True, settled=100, leaves=True), acked=1, at_s=0)
    assert audited(server, 30, 59, 70) == Audit("OK", 100, 0, 0)  # changed a moment before the records were read
    assert audited(server, 30, 60, 70, is_complete=False) == Audit("OK", 100, 0, 0)  # the records are behind
    assert audited(server, 30, 60, 70) == Audit("OK", 30, -70, 0)
    assert stored(server, SUM)["b"] == "30"
