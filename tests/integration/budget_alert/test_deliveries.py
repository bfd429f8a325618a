"""Deliveries from the table: signed, spaced, once per attempt, over kills, slow receivers and circuits."""

import asyncio
import datetime as dt
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from sluicegate.budget_alert import policy, repository
from sluicegate.budget_alert.delivering import Deliveries
from sluicegate.contracts.facts import BudgetThresholdReached
from sluicegate.devstack.waiting import until
from sluicegate.devstack.webhook_receiver import Webhook, WebhookReceiver, answer
from sluicegate.store import transactions
from sluicegate.store.pool import Pool

AddEndpoint = Callable[..., Awaitable[tuple[str, str]]]
Store = Callable[..., Awaitable[None]]
LetPass = Callable[[float], Awaitable[None]]
Start = Callable[..., Deliveries]

START_US = 1_793_491_200_000_000


@pytest.fixture
def store(pool: Pool) -> Store:
    """Stores thresholds, as the handler does; each number is another budget."""

    async def put(*numbers: int, tenant: str | None = None) -> None:
        for number in numbers:
            await transactions.run(pool, partial(repository.store_alert, event=threshold(number, tenant=tenant)))

    return put


def threshold(number: int = 0, *, tenant: str | None = None) -> BudgetThresholdReached:
    return BudgetThresholdReached(
        event_id=f"bud_{number}:tea_1:{START_US // 1_000_000}:80",
        at_us=START_US + 5,
        tenant=tenant,
        budget=f"bud_{number}",
        budget_name="research",
        scope="team",
        scope_id="tea_1",
        period_start_us=START_US,
        period_end_us=START_US + 86_400_000_000,
        threshold_percent=80,
        limit_nano_usd=10_000_000_000,
        spent_nano_usd=8_000_000_000,
    )


async def states(database: Any) -> Counter[str]:
    return Counter(row["state"] for row in await database.fetch("SELECT state FROM deliveries"))


async def delivery(database: Any) -> Any:
    return await database.fetchrow("SELECT * FROM deliveries")


async def until_attempted(database: Any, number: int) -> Any:
    """Wait until the only delivery's attempt with this number has ended; return the delivery."""

    async def has_ended() -> bool:
        row = await delivery(database)
        ended = await database.fetchval("SELECT ended_at FROM delivery_attempts WHERE number = $1", number)
        return row["claimed_until"] is None and ended is not None

    await until(has_ended, f"attempt {number}")
    return await delivery(database)


async def test_webhook_arrives_signed_and_is_delivered_once(
    database: Any, store: Store, add_endpoint: AddEndpoint, start_delivering: Start, receiver: WebhookReceiver
) -> None:
    endpoint, secret = await add_endpoint(receiver.url)
    await store(0)
    start_delivering()
    (webhook,) = await receiver.until_received(1)
    await until_attempted(database, 1)
    assert webhook.is_signed_with(secret)
    assert abs(int(webhook.headers["webhook-timestamp"]) - time.time()) < 60
    assert webhook.headers["webhook-id"] == threshold(0).event_id
    assert webhook.headers["content-type"] == "application/json"
    assert webhook.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert webhook.json["data"]["event_id"] == threshold(0).event_id
    assert webhook.json["data"]["spent_usd"] == "8.00"
    row = await delivery(database)
    assert (row["state"], row["endpoint"], row["attempts"], row["last_status"]) == ("delivered", endpoint, 1, 204)
    assert row["ended_at"] is not None


async def test_slack_endpoint_gets_a_text(
    store: Store, add_endpoint: AddEndpoint, start_delivering: Start, receiver: WebhookReceiver
) -> None:
    await add_endpoint(receiver.url, form="slack")
    await store(0)
    start_delivering()
    (webhook,) = await receiver.until_received(1)
    assert set(webhook.json) == {"text"}
    assert "*Budget research*" in webhook.json["text"]


async def test_each_valid_secret_signs_while_one_is_replaced(
    store: Store,
    add_endpoint: AddEndpoint,
    add_secret: Any,
    database: Any,
    start_delivering: Start,
    receiver: WebhookReceiver,
) -> None:
    endpoint, new = await add_endpoint(receiver.url)
    old = await add_secret(endpoint, expires_in_s=3_600)
    expired = await add_secret(endpoint, expires_in_s=-1)
    await store(0)
    start_delivering()
    (webhook,) = await receiver.until_received(1)
    assert webhook.is_signed_with(new)
    assert webhook.is_signed_with(old)
    assert not webhook.is_signed_with(expired)
    assert len(webhook.headers["webhook-signature"].split(" ")) == 2


async def test_endpoints_get_their_own_tenants_alerts_and_the_platforms_get_all(
    database: Any, store: Store, add_endpoint: AddEndpoint
) -> None:
    mine, _ = await add_endpoint("http://a.example", tenant="ten_1")
    others, _ = await add_endpoint("http://b.example", tenant="ten_2")
    platforms, _ = await add_endpoint("http://c.example")
    await add_endpoint("http://d.example", tenant="ten_1", enabled=False)
    await store(1, tenant="ten_1")
    await store(2, tenant="ten_2")
    await store(3)
    rows = await database.fetch("SELECT budget, endpoint FROM deliveries JOIN alerts ON alerts.id = alert")
    assert {(row["budget"], row["endpoint"]) for row in rows} == {
        ("bud_1", mine),
        ("bud_1", platforms),
        ("bud_2", others),
        ("bud_2", platforms),
        ("bud_3", platforms),
    }


async def test_delivery_is_tried_six_times_in_an_hour_and_then_is_dead(
    database: Any,
    store: Store,
    add_endpoint: AddEndpoint,
    start_delivering: Start,
    let_pass: LetPass,
    receiver: WebhookReceiver,
) -> None:
    receiver.respond = answer(500, body=b"oh no")
    await add_endpoint(receiver.url)
    await store(0)
    deliveries = start_delivering()
    waits_s = []
    for number in range(1, policy.ATTEMPTS):
        row = await until_attempted(database, number)
        assert (row["state"], row["attempts"], row["attempts_left"]) == ("pending", number, 6 - number)
        now = await database.fetchval("SELECT now()")
        waits_s.append((row["next_attempt_at"] - now).total_seconds())
        assert len(receiver.received) == number
        # The circuit opens at the fifth failure for less than this attempt has to wait.
        await let_pass(waits_s[-1] + 1)
        deliveries.look_now()
    row = await until_attempted(database, policy.ATTEMPTS)
    assert (row["state"], row["last_status"], row["last_error"]) == ("dead", 500, "answered 500: oh no")
    assert 45 * 60 < sum(waits_s) < 75 * 60
    assert len({webhook.headers["webhook-id"] for webhook in receiver.received}) == 1
    assert len({webhook.body for webhook in receiver.received}) == 1
    await let_pass(86_400)
    deliveries.look_now()
    history = await database.fetch("SELECT number, status, error FROM delivery_attempts ORDER BY number")
    assert [tuple(row) for row in history] == [(number, 500, "answered 500: oh no") for number in range(1, 7)]


async def test_next_attempt_is_made_by_another_process_when_the_first_has_ended(
    database: Any,
    store: Store,
    add_endpoint: AddEndpoint,
    start_delivering: Start,
    let_pass: LetPass,
    receiver: WebhookReceiver,
) -> None:
    """The time of the next attempt is in the table alone: whoever comes keeps it, neither sooner nor never."""
    receiver.respond = answer(503, headers="retry-after: 600\r\n")
    await add_endpoint(receiver.url)
    await store(0)
    start_delivering()
    row = await until_attempted(database, 1)
    later = start_delivering()
    await let_pass(590)
    later.look_now()
    waiting = await database.fetchval("SELECT next_attempt_at - now() FROM deliveries")
    assert waiting > dt.timedelta(0)
    assert len(receiver.received) == 1
    receiver.respond = answer(200)
    await let_pass(30)
    later.look_now()
    row = await until_attempted(database, 2)
    assert row["state"] == "delivered"


async def test_endpoint_is_left_alone_when_it_answers_410(
    database: Any,
    store: Store,
    add_endpoint: AddEndpoint,
    start_delivering: Start,
    receiver: WebhookReceiver,
    pool: Pool,
) -> None:
    receiver.respond = answer(410)
    endpoint, _ = await add_endpoint(receiver.url)
    await store(0)
    deliveries = start_delivering()
    await until_dead(database, 1)
    await store(1)
    deliveries.look_now()
    await until_dead(database, 2)
    assert len(receiver.received) == 1
    assert await database.fetchval("SELECT state FROM endpoint_circuits") == "gone"

    # A change of the endpoint is a reason to try again; what was missed can be replayed.
    receiver.respond = answer(200)
    await database.execute("UPDATE webhook_endpoints SET updated_at = now() WHERE id = $1", endpoint)
    await store(2)
    deliveries.look_now()
    await until(lambda: is_in_state(database, delivered=1, dead=2), "delivered")
    assert await database.fetchval("SELECT count(*) FROM endpoint_circuits") == 0


async def test_replay_delivers_once_more_when_a_delivery_is_dead(
    database: Any,
    store: Store,
    add_endpoint: AddEndpoint,
    start_delivering: Start,
    receiver: WebhookReceiver,
    pool: Pool,
) -> None:
    receiver.respond = answer(410)
    await add_endpoint(receiver.url)
    await store(0)
    deliveries = start_delivering()
    await until_dead(database, 1)
    receiver.respond = answer(200)
    row = await delivery(database)
    for _ in range(2):  # a command that comes again is obeyed once
        assert await transactions.run(pool, lambda c: repository.replay(c, row["id"], "evt_1"))
    deliveries.look_now()
    await until(lambda: is_in_state(database, delivered=1), "delivered")
    assert [webhook.headers["webhook-id"] for webhook in receiver.received] == [threshold(0).event_id] * 2
    assert await transactions.run(pool, lambda c: repository.replay(c, row["id"], "evt_1"))
    assert (await delivery(database))["state"] == "delivered"
    assert not await transactions.run(pool, lambda c: repository.replay(c, "dlv_none", "evt_2"))


async def test_private_address_is_refused_when_the_endpoint_does_not_allow_it(
    database: Any, store: Store, add_endpoint: AddEndpoint, start_delivering: Start, receiver: WebhookReceiver
) -> None:
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433"):
        await add_endpoint(f"http://{host}:{receiver.port}/hook", allows_private=False)
    await store(0)
    start_delivering()
    await until_dead(database, 4)
    assert receiver.received == []
    rows = await database.fetch("SELECT attempts, last_error FROM deliveries")
    assert all(row["attempts"] == 1 and "private" in row["last_error"] for row in rows)


async def test_delivery_is_dead_when_its_endpoint_is_disabled_or_deleted(
    database: Any, store: Store, add_endpoint: AddEndpoint, start_delivering: Start, receiver: WebhookReceiver
) -> None:
    disabled, _ = await add_endpoint(receiver.url)
    deleted, _ = await add_endpoint(receiver.url)
    await store(0)
    await database.execute("UPDATE webhook_endpoints SET enabled = false WHERE id = $1", disabled)
    await database.execute("UPDATE webhook_endpoints SET deleted_at = now() WHERE id = $1", deleted)
    start_delivering()
    await until_dead(database, 2)
    errors = {row["endpoint"]: row["last_error"] for row in await database.fetch("SELECT * FROM deliveries")}
    assert errors == {disabled: "the endpoint is disabled", deleted: "the endpoint was deleted"}
    assert receiver.received == []


async def test_slow_receivers_hold_up_nobody(
    database: Any, store: Store, add_endpoint: AddEndpoint, start_delivering: Start, receiver: WebhookReceiver
) -> None:
    async def never(_webhook: Webhook, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with WebhookReceiver(never) as slow:
        await add_endpoint(slow.url)
        await store(*range(20))
        await add_endpoint(receiver.url)
        start_delivering(total_timeout_s=60.0, at_once=10, per_endpoint=4)
        await until(lambda: slow.open_count == 4, "slow ones at work")
        await store(*range(20, 30))
        await until(lambda: is_in_state(database, delivered=10, pending=30), "the others delivered")
        assert slow.open_count == 4
        assert len(receiver.received) == 10


async def test_attempt_ends_when_its_time_is_over(
    database: Any, store: Store, add_endpoint: AddEndpoint, start_delivering: Start, receiver: WebhookReceiver
) -> None:
    async def never(_webhook: Webhook, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    receiver.respond = never
    await add_endpoint(receiver.url)
    await store(0)
    start_delivering(total_timeout_s=0.3)
    row = await until_attempted(database, 1)
    assert (row["state"], row["last_error"]) == ("pending", "no answer within 0.3 s")


async def test_webhook_is_not_sent_again_when_its_outcome_could_not_be_recorded_at_once(
    database: Any,
    store: Store,
    add_endpoint: AddEndpoint,
    start_delivering: Start,
    receiver: WebhookReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish, failures = repository.finish, [ConnectionResetError(), TimeoutError()]

    async def fail_first(*arguments: Any) -> bool:
        if failures:
            raise failures.pop()
        return await finish(*arguments)

    monkeypatch.setattr(repository, "finish", fail_first)
    await add_endpoint(receiver.url)
    await store(0)
    start_delivering()
    row = await until_attempted(database, 1)
    assert (row["state"], row["attempts"], failures) == ("delivered", 1, [])
    assert len(receiver.received) == 1


async def test_each_attempt_is_made_once_when_several_processes_deliver(
    database: Any, store: Store, add_endpoint: AddEndpoint, start_delivering: Start, receiver: WebhookReceiver
) -> None:
    await add_endpoint(receiver.url)
    await store(*range(60))
    for _ in range(4):
        start_delivering(per_endpoint=100)
    await until(lambda: is_in_state(database, delivered=60), "all delivered")
    assert max(Counter(webhook.headers["webhook-id"] for webhook in receiver.received).values()) == 1
    assert await database.fetchval("SELECT max(attempts) FROM deliveries") == 1


async def test_claim_is_taken_again_as_the_next_attempt_when_its_process_was_killed(
    database: Any,
    store: Store,
    add_endpoint: AddEndpoint,
    start_delivering: Start,
    let_pass: LetPass,
    receiver: WebhookReceiver,
    pool: Pool,
) -> None:
    await add_endpoint(receiver.url)
    await store(0)
    (dead,) = await transactions.run(pool, lambda c: repository.claim(c, most=10, per_endpoint=4))
    assert await transactions.run(pool, lambda c: repository.claim(c, most=10, per_endpoint=4)) == []
    deliveries = start_delivering()
    await let_pass(repository.LEASE_S)
    deliveries.look_now()
    row = await until_attempted(database, 2)
    assert (row["state"], row["attempts"]) == ("delivered", 2)
    assert len(receiver.received) == 1

    # The killed one was only asleep: what it says now is too late.
    failed = policy.Answer(error="late")
    outcome = policy.outcome(failed, attempts_left=dead.attempts_left)
    assert not await transactions.run(pool, lambda c: repository.finish(c, dead, failed, outcome))
    assert (await delivery(database))["state"] == "delivered"


async def test_late_failure_changes_nothing_and_late_success_counts_when_another_process_is_at_it(
    database: Any, store: Store, add_endpoint: AddEndpoint, let_pass: LetPass, pool: Pool
) -> None:
    await add_endpoint("http://127.0.0.1:9/")
    await store(0)
    claims = []
    for _ in range(3):
        claims += await transactions.run(pool, lambda c: repository.claim(c, most=1, per_endpoint=1))
        await let_pass(repository.LEASE_S)
    first, second, third = claims
    before = await delivery(database)
    failed, arrived = policy.Answer(status=500), policy.Answer(status=200)

    async def finish(claim: repository.Claim, answer: policy.Answer) -> bool:
        outcome = policy.outcome(answer, attempts_left=claim.attempts_left)
        return await transactions.run(pool, lambda c: repository.finish(c, claim, answer, outcome))

    assert not await finish(first, failed)
    assert await delivery(database) == before
    assert await finish(second, arrived)
    assert (await delivery(database))["state"] == "delivered"
    assert not await finish(third, failed)
    assert (await delivery(database))["state"] == "delivered"


async def test_delivery_is_dead_when_the_process_of_its_last_attempt_was_killed(
    database: Any, store: Store, add_endpoint: AddEndpoint, let_pass: LetPass, pool: Pool
) -> None:
    await add_endpoint("http://127.0.0.1:9/")
    await store(0)
    for _ in range(policy.ATTEMPTS):
        assert len(await transactions.run(pool, lambda c: repository.claim(c, most=1, per_endpoint=1))) == 1
        assert await transactions.run(pool, repository.bury_hopeless) == 0
        await let_pass(repository.LEASE_S)
    assert await transactions.run(pool, repository.bury_hopeless) == 1
    assert (await delivery(database))["state"] == "dead"


async def test_one_delivery_tries_when_the_circuit_is_open_and_all_go_when_it_closes(
    database: Any,
    store: Store,
    add_endpoint: AddEndpoint,
    start_delivering: Start,
    let_pass: LetPass,
    receiver: WebhookReceiver,
) -> None:
    receiver.respond = answer(500)
    await add_endpoint(receiver.url)
    await store(*range(12))
    deliveries = start_delivering(per_endpoint=1)
    circuit = "SELECT state FROM endpoint_circuits"
    await until(lambda: database.fetchval(circuit), "first failure")
    await until(lambda: is_circuit(database, "open"), "circuit open")
    await until(lambda: is_idle(database), "idle")
    before = len(receiver.received)
    assert before == policy.CIRCUIT_FAILURES

    await let_pass(policy.CIRCUIT_FIRST_S)
    deliveries.look_now()
    await receiver.until_received(before + 1)
    await until(lambda: is_idle(database), "idle")
    assert len(receiver.received) == before + 1
    assert await is_circuit(database, "open")

    receiver.respond = answer(200)
    await let_pass(policy.CIRCUIT_FIRST_S * 2)
    deliveries.look_now()
    await until(lambda: is_circuit(database, None), "circuit closed")
    await let_pass(policy.RETRY_DELAYS_S[0] * 2)
    deliveries.look_now()
    await until(lambda: is_in_state(database, delivered=12), "all delivered")


async def test_delivery_is_dead_when_its_endpoint_failed_for_hours_without_leave_to_try(
    database: Any, store: Store, add_endpoint: AddEndpoint, let_pass: LetPass, pool: Pool
) -> None:
    endpoint, _ = await add_endpoint("http://127.0.0.1:9/")
    await store(0)
    await database.execute(
        "INSERT INTO endpoint_circuits (endpoint, state, failures, open_until, changed_at) "
        "VALUES ($1, 'open', 9, now() + interval '1 day', now())",
        endpoint,
    )
    assert await transactions.run(pool, lambda c: repository.claim(c, most=1, per_endpoint=1)) == []
    assert await transactions.run(pool, repository.bury_hopeless) == 0
    await let_pass(policy.ROUND_S)
    assert await transactions.run(pool, repository.bury_hopeless) == 1


async def test_circuit_opens_for_its_first_time_when_many_attempts_fail_at_once(
    database: Any, store: Store, add_endpoint: AddEndpoint, pool: Pool
) -> None:
    await add_endpoint("http://127.0.0.1:9/")
    await store(*range(9))
    claims = await transactions.run(pool, lambda c: repository.claim(c, most=9, per_endpoint=9))
    assert len(claims) == 9
    for claim in claims:
        await fail(pool, claim)
    circuit = await database.fetchrow("SELECT failures, open_until - changed_at AS wait FROM endpoint_circuits")
    assert (circuit["failures"], circuit["wait"].total_seconds()) == (policy.CIRCUIT_FAILURES, policy.CIRCUIT_FIRST_S)


async def test_gone_endpoint_stays_gone_when_a_test_fails_otherwise_until_it_is_changed(
    database: Any, store: Store, add_endpoint: AddEndpoint, pool: Pool
) -> None:
    endpoint, _ = await add_endpoint("http://127.0.0.1:9/")
    await store(0)
    (claim,) = await transactions.run(pool, lambda c: repository.claim(c, most=1, per_endpoint=1))
    await fail(pool, claim, status=410)
    for expected in ("gone", "closed"):
        asking = partial(repository.add_test, endpoint=endpoint, command=f"evt_{expected}")
        assert await transactions.run(pool, asking)
        (claim,) = await transactions.run(pool, lambda c: repository.claim(c, most=1, per_endpoint=1))
        await fail(pool, claim, status=500)
        assert await is_circuit(database, expected)
        await database.execute("UPDATE webhook_endpoints SET updated_at = now() WHERE id = $1", endpoint)


async def test_test_message_is_sent_once_though_the_circuit_is_open_and_the_endpoint_disabled(
    database: Any, add_endpoint: AddEndpoint, start_delivering: Start, receiver: WebhookReceiver, pool: Pool
) -> None:
    endpoint, secret = await add_endpoint(receiver.url, enabled=False)
    await database.execute(
        "INSERT INTO endpoint_circuits (endpoint, state, failures, open_until, changed_at) "
        "VALUES ($1, 'open', 9, now() + interval '1 day', now())",
        endpoint,
    )
    for _ in range(2):
        assert await transactions.run(pool, lambda c: repository.add_test(c, endpoint, "evt_1"))
    start_delivering()
    (webhook,) = await receiver.until_received(1)
    await until(lambda: is_in_state(database, delivered=1), "delivered")
    assert webhook.json["type"] == "endpoint.test"
    assert webhook.is_signed_with(secret)
    assert webhook.headers["webhook-id"] == "evt_1"
    assert await is_circuit(database, None)
    assert not await transactions.run(pool, lambda c: repository.add_test(c, "whk_none", "evt_2"))


async def test_test_and_replay_go_first_when_many_wait_for_the_open_circuit(
    database: Any, store: Store, add_endpoint: AddEndpoint, pool: Pool
) -> None:
    endpoint, _ = await add_endpoint("http://127.0.0.1:9/")
    await store(*range(9))
    await database.execute(
        "INSERT INTO endpoint_circuits (endpoint, state, failures, open_until, changed_at) "
        "VALUES ($1, 'open', 9, now() + interval '1 day', now())",
        endpoint,
    )
    assert await transactions.run(pool, lambda c: repository.claim(c, most=9, per_endpoint=4)) == []
    last = await database.fetchval("SELECT id FROM deliveries ORDER BY next_attempt_at DESC, id DESC LIMIT 1")
    assert await transactions.run(pool, lambda c: repository.replay(c, last, "evt_1"))
    assert await transactions.run(pool, lambda c: repository.add_test(c, endpoint, "evt_2"))
    claims = await transactions.run(pool, lambda c: repository.claim(c, most=9, per_endpoint=4))
    assert {claim.message_id for claim in claims} == {"evt_2", f"bud_8:tea_1:{START_US // 1_000_000}:80"}


async def test_replay_is_not_lost_when_it_comes_during_the_last_attempt(
    database: Any, store: Store, add_endpoint: AddEndpoint, pool: Pool
) -> None:
    await add_endpoint("http://127.0.0.1:9/")
    await store(0)
    await database.execute("UPDATE deliveries SET attempts = 5, attempts_left = 1")
    (claim,) = await transactions.run(pool, lambda c: repository.claim(c, most=1, per_endpoint=1))
    assert await transactions.run(pool, lambda c: repository.replay(c, claim.id, "evt_1"))
    failed = policy.Answer(status=500)
    outcome = policy.outcome(failed, attempts_left=claim.attempts_left)
    assert outcome.state == "dead"
    assert await transactions.run(pool, lambda c: repository.finish(c, claim, failed, outcome))
    row = await delivery(database)
    assert (row["state"], row["attempts_left"], row["ended_at"]) == ("pending", 6, None)


async def is_in_state(database: Any, **expected: int) -> bool:
    return await states(database) == Counter(expected)


async def fail(pool: Pool, claim: repository.Claim, *, status: int = 500) -> None:
    """End an attempt as the receiver's answer would."""
    failed = policy.Answer(status=status)
    outcome = policy.outcome(failed, attempts_left=claim.attempts_left)
    assert await transactions.run(pool, lambda c: repository.finish(c, claim, failed, outcome))


async def is_circuit(database: Any, state: str | None) -> bool:
    found: str | None = await database.fetchval("SELECT state FROM endpoint_circuits")
    return found == state


async def is_idle(database: Any) -> bool:
    """Whether nothing is due that the circuit would let go, and nothing is under way."""
    claimed: int = await database.fetchval("SELECT count(*) FROM deliveries WHERE claimed_until IS NOT NULL")
    return claimed == 0


async def until_dead(database: Any, count: int) -> None:
    await until(lambda: is_in_state(database, dead=count), f"{count} dead")
