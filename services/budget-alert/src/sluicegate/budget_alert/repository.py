"""All SQL of this room.

A delivery's way: stored with its alert, claimed for one attempt at a time, finished. Claiming counts the attempt, gives
it a number and a lease (`claimed_until`), and commits, before anything is sent: so no two processes ever make the same
attempt, and what a killed one had claimed is due again when its lease ends, as the next attempt. Finishing a
failure needs the number: who comes late changes nothing. Time is the database's, the same for all processes.

Claiming keeps to the circuits: for an endpoint whose circuit is open one delivery is claimed when it is time to try.
Deliveries that somebody asked for (a test, a replay) are claimed all the same.
"""

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import msgspec

from sluicegate.budget_alert.messages import Alert, Format, Test
from sluicegate.budget_alert.policy import (
    ATTEMPTS,
    CIRCUIT_FAILURES,
    CIRCUIT_FIRST_S,
    CIRCUIT_MOST_S,
    ROUND_S,
    Answer,
    Outcome,
)
from sluicegate.contracts.catalogue import Budget, SealedSecret
from sluicegate.contracts.facts import BudgetThresholdReached
from sluicegate.contracts.ids import new_id
from sluicegate.store.pool import PoolConnection

# Longer than an attempt and the patience to record it (see `delivering`).
LEASE_S: Final = 30.0
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_UNLOCKED: Final = "(claimed_until IS NULL OR claimed_until <= now())"
_IS_DUE: Final = f"state = 'pending' AND next_attempt_at <= now() AND attempts_left > 0 AND {_UNLOCKED}"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one delivery, ours to make. `obstacle`: why there is nothing to send to."""

    id: str
    number: int
    attempts_left: int
    endpoint: str
    message_id: str
    subject: Alert | Test
    url: str
    form: Format
    allows_private: bool
    secrets: tuple[SealedSecret, ...]
    obstacle: str | None


class EnabledBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A budget as the auditor sees it."""

    budget: Budget
    tenant: str | None


# Alerts


async def store_alert(connection: PoolConnection, event: BudgetThresholdReached) -> int | None:
    """Store a threshold and its deliveries; return how many there are, None if it was there already.

    To be called in a transaction: either all of it is there or nothing.
    """
    alert = await connection.fetchval(
        """
        INSERT INTO alerts (
            id, event_id, tenant, budget, budget_name, scope, scope_id, period_start, period_end, threshold_percent,
            limit_nano_usd, spent_nano_usd, is_soft, reached_at
        ) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
        ON CONFLICT (budget, scope, scope_id, period_start, threshold_percent) DO NOTHING
        RETURNING id
        """,
        new_id("alr"),
        event.event_id,
        event.tenant,
        event.budget,
        event.budget_name,
        event.scope,
        event.scope_id,
        _time(event.period_start_us),
        _time(event.period_end_us),
        event.threshold_percent,
        event.limit_nano_usd,
        event.spent_nano_usd,
        event.is_soft,
        _time(event.at_us),
    )
    if alert is None:
        return None
    endpoints = await connection.fetch(
        "SELECT id FROM webhook_endpoints WHERE enabled AND deleted_at IS NULL AND (tenant IS NULL OR tenant = $1)",
        event.tenant,
    )
    await connection.executemany(
        f"""
        INSERT INTO deliveries (
            id, alert, endpoint, tenant, message_id, attempts_left, next_attempt_at, expires_at
        ) VALUES ($1, $2, $3, $4, $5, {ATTEMPTS}, now(), now() + make_interval(secs => {ROUND_S}))
        """,  # noqa: S608 - our own numbers
        [(new_id("dlv"), alert, row["id"], event.tenant, event.event_id) for row in endpoints],
    )
    return len(endpoints)


async def known_alerts(connection: PoolConnection, event_ids: Sequence[str]) -> set[str]:
    """Return those of these events that are stored."""
    rows = await connection.fetch("SELECT event_id FROM alerts WHERE event_id = ANY ($1)", event_ids)
    return {row["event_id"] for row in rows}


# Commands


async def add_test(connection: PoolConnection, endpoint: str, command: str) -> bool:
    """Store a test message, once per command: one attempt, at once. False: there is no such endpoint."""
    tenants = await connection.fetch(
        "SELECT tenant FROM webhook_endpoints WHERE id = $1 AND deleted_at IS NULL", endpoint
    )
    if not tenants:
        return False
    await connection.execute(
        f"""
        INSERT INTO deliveries (
            id, endpoint, tenant, message_id, attempts_left, next_attempt_at, expires_at, command
        ) VALUES ($1, $2, $3, $4, 1, now(), now() + make_interval(secs => {ROUND_S}), $4)
        ON CONFLICT (command) WHERE alert IS NULL DO NOTHING
        """,  # noqa: S608 - our own number
        new_id("dlv"),
        endpoint,
        tenants[0]["tenant"],
        command,
    )
    return True


async def replay(connection: PoolConnection, delivery: str, command: str) -> bool:
    """Begin a delivery anew, once per command. False: there is no such delivery."""
    await connection.execute(
        f"""
        UPDATE deliveries
        SET state = 'pending', attempts_left = CASE WHEN alert IS NULL THEN 1 ELSE {ATTEMPTS} END,
            next_attempt_at = now(), expires_at = now() + make_interval(secs => {ROUND_S}), ended_at = NULL,
            command = $2
        WHERE id = $1 AND command IS DISTINCT FROM $2
        """,  # noqa: S608 - our own numbers
        delivery,
        command,
    )
    return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM deliveries WHERE id = $1)", delivery))


# Deliveries

_PROBED: Final = f"""
SELECT endpoint FROM endpoint_circuits AS circuit
WHERE state = 'open' AND open_until <= now()
    AND EXISTS (SELECT FROM deliveries WHERE endpoint = circuit.endpoint AND {_IS_DUE})
FOR UPDATE SKIP LOCKED
"""  # noqa: S608 - our own text

_CLAIM: Final = f"""
WITH running AS (
    SELECT endpoint, count(*) AS running FROM deliveries
    WHERE state = 'pending' AND claimed_until > now()
    GROUP BY endpoint
),
due AS (
    SELECT
        id,
        next_attempt_at,
        coalesce(running, 0) + row_number() OVER (
            -- What waits for the circuit stands behind what somebody asked for, or that would wait with it.
            PARTITION BY endpoint
            ORDER BY command IS NULL AND circuit.state IS NOT DISTINCT FROM 'open', next_attempt_at, id
        ) AS place,
        CASE
            WHEN command IS NOT NULL OR circuit.state IS DISTINCT FROM 'open' THEN $2
            WHEN endpoint = ANY ($3::text[]) THEN 1
            ELSE 0
        END AS places
    FROM (SELECT * FROM deliveries WHERE {_IS_DUE}) AS delivery
    LEFT JOIN endpoint_circuits AS circuit USING (endpoint)
    LEFT JOIN running USING (endpoint)
),
picked AS (
    SELECT id FROM deliveries
    WHERE id IN (SELECT id FROM due WHERE place <= places ORDER BY next_attempt_at LIMIT $1) AND {_IS_DUE}
    FOR UPDATE SKIP LOCKED
),
claimed AS (
    UPDATE deliveries
    SET attempts = attempts + 1, attempts_left = attempts_left - 1,
        claimed_until = now() + make_interval(secs => {LEASE_S})
    FROM picked WHERE deliveries.id = picked.id
    RETURNING deliveries.*
),
noted AS (INSERT INTO delivery_attempts (delivery, number, started_at) SELECT id, attempts, now() FROM claimed)
SELECT
    claimed.id, claimed.attempts, claimed.attempts_left, claimed.message_id, claimed.alert, claimed.command,
    claimed.endpoint, claimed.created_at, claimed.command IS NOT NULL AS is_asked,
    endpoint.id IS NOT NULL AS has_endpoint, endpoint.name AS endpoint_name, endpoint.url, endpoint.format,
    endpoint.allow_private_addresses, endpoint.enabled AS is_enabled,
    coalesce(circuit.state = 'gone' AND circuit.changed_at >= endpoint.updated_at, false) AS is_gone,
    circuit.last_error AS circuit_error,
    alerts.event_id, alerts.tenant, alerts.budget, alerts.budget_name, alerts.scope, alerts.scope_id,
    alerts.period_start, alerts.period_end, alerts.threshold_percent, alerts.limit_nano_usd, alerts.spent_nano_usd,
    alerts.is_soft, alerts.reached_at
FROM claimed
LEFT JOIN alerts ON alerts.id = claimed.alert
LEFT JOIN webhook_endpoints AS endpoint ON endpoint.id = claimed.endpoint AND endpoint.deleted_at IS NULL
LEFT JOIN endpoint_circuits AS circuit ON circuit.endpoint = claimed.endpoint
"""  # noqa: S608 - our own text and numbers


async def claim(connection: PoolConnection, *, most: int, per_endpoint: int) -> list[Claim]:
    """Claim up to `most` deliveries that are due, so that no endpoint has more than `per_endpoint` under way.

    To be called in a transaction. Several processes that claim in one moment may exceed `per_endpoint` together.
    """
    probed = [row["endpoint"] for row in await connection.fetch(_PROBED)]
    rows = await connection.fetch(_CLAIM, most, per_endpoint, probed)
    endpoints = {row["endpoint"] for row in rows}
    if tried := endpoints.intersection(probed):
        # Until the one that tries has an answer, everybody finds the circuit open.
        await connection.execute(
            "UPDATE endpoint_circuits SET open_until = now() + make_interval(secs => $2) WHERE endpoint = ANY ($1)",
            list(tried),
            LEASE_S,
        )
    sealed = await _sealed_secrets(connection, endpoints)
    return [_claim(row, tuple(sealed.get(row["endpoint"], ()))) for row in rows]


async def _sealed_secrets(connection: PoolConnection, endpoints: Iterable[str]) -> dict[str, list[SealedSecret]]:
    """Return the secrets that are valid now, the newest first."""
    found: dict[str, list[SealedSecret]] = {}
    for row in await connection.fetch(
        """
        SELECT endpoint, secret_key_id, secret_nonce, secret_ciphertext FROM webhook_secrets
        WHERE endpoint = ANY ($1) AND (expires_at IS NULL OR expires_at > now())
        ORDER BY expires_at DESC NULLS FIRST, id DESC
        """,
        list(endpoints),
    ):
        found.setdefault(row["endpoint"], []).append(
            SealedSecret(key_id=row["secret_key_id"], nonce=row["secret_nonce"], ciphertext=row["secret_ciphertext"])
        )
    return found


def _claim(row: Any, secrets: tuple[SealedSecret, ...]) -> Claim:
    return Claim(
        id=row["id"],
        number=row["attempts"],
        attempts_left=row["attempts_left"],
        endpoint=row["endpoint"],
        message_id=row["message_id"],
        subject=_subject(row),
        url=row["url"] or "",
        form=cast("Format", row["format"] or "json"),
        allows_private=bool(row["allow_private_addresses"]),
        secrets=secrets,
        obstacle=_obstacle(row),
    )


def _subject(row: Any) -> Alert | Test:
    if row["alert"] is None:
        return Test(endpoint=row["endpoint"], endpoint_name=row["endpoint_name"] or "", at=row["created_at"])
    return Alert(**{name: row[name] for name in Alert.__struct_fields__})


def _obstacle(row: Any) -> str | None:
    if not row["has_endpoint"]:
        return "the endpoint was deleted"
    if not row["is_enabled"] and row["alert"] is not None:
        return "the endpoint is disabled"
    if row["is_gone"] and not row["is_asked"]:
        return "the endpoint answered 410 Gone to an earlier message"
    return None


async def finish(connection: PoolConnection, claim: Claim, answer: Answer, outcome: Outcome) -> bool:
    """Record what came of an attempt; False if the delivery has gone on without it. To be called in a transaction."""
    await connection.execute(
        "UPDATE delivery_attempts SET ended_at = now(), status = $3, error = $4 WHERE delivery = $1 AND number = $2",
        claim.id,
        claim.number,
        answer.status,
        outcome.error,
    )
    # Arrived is arrived, however late it is known. A replay that came meanwhile has given it more attempts.
    changed = await connection.fetchval(
        """
        UPDATE deliveries
        SET state = CASE WHEN $3 = 'dead' AND attempts_left > $4 THEN 'pending' ELSE $3 END,
            ended_at = CASE WHEN $3 = 'pending' OR ($3 = 'dead' AND attempts_left > $4) THEN NULL ELSE now() END,
            next_attempt_at = now() + make_interval(secs => $5), claimed_until = NULL, last_status = $6, last_error = $7
        WHERE id = $1 AND state = 'pending' AND (attempts = $2 OR $3 = 'delivered')
        RETURNING id
        """,
        claim.id,
        claim.number,
        outcome.state,
        claim.attempts_left,
        outcome.retry_in_s,
        answer.status,
        outcome.error,
    )
    await _note(connection, claim, outcome)
    return changed is not None


async def _note(connection: PoolConnection, claim: Claim, outcome: Outcome) -> None:
    """Let an endpoint's circuit know.

    An attempt that began before the circuit opened says nothing new: several fail at once, and each would double the
    wait. And a failure does not take back "gone", which stands until the endpoint is changed or takes a message.
    """
    endpoint = claim.endpoint
    if outcome.endpoint == "well":
        await connection.execute("DELETE FROM endpoint_circuits WHERE endpoint = $1", endpoint)
    elif outcome.endpoint == "gone":
        await connection.execute(
            """
            INSERT INTO endpoint_circuits (endpoint, state, failures, last_error, changed_at)
            VALUES ($1, 'gone', 1, $2, now())
            ON CONFLICT (endpoint) DO UPDATE
            SET state = 'gone', open_until = NULL, last_error = excluded.last_error, changed_at = now()
            """,
            endpoint,
            outcome.error,
        )
    elif outcome.endpoint == "failed":
        await connection.execute(
            f"""
            INSERT INTO endpoint_circuits AS circuit (endpoint, state, failures, last_error, changed_at)
            VALUES ($1, 'closed', 1, $2, now())
            ON CONFLICT (endpoint) DO UPDATE
            SET failures = circuit.failures + 1, last_error = excluded.last_error, changed_at = now(),
                state = CASE WHEN circuit.failures + 1 >= {CIRCUIT_FAILURES} THEN 'open' ELSE 'closed' END,
                open_until = CASE
                    WHEN circuit.failures + 1 >= {CIRCUIT_FAILURES} THEN now() + make_interval(secs => least(
                        {CIRCUIT_MOST_S}, {CIRCUIT_FIRST_S} * 2 ^ least(circuit.failures + 1 - {CIRCUIT_FAILURES}, 10)
                    ))
                END
            WHERE CASE circuit.state
                WHEN 'open' THEN circuit.changed_at <= (
                    SELECT started_at FROM delivery_attempts WHERE delivery = $3 AND number = $4
                )
                WHEN 'gone' THEN circuit.changed_at < (SELECT updated_at FROM webhook_endpoints WHERE id = $1)
                ELSE true
            END
            """,  # noqa: S608 - our own numbers
            endpoint,
            outcome.error,
            claim.id,
            claim.number,
        )


async def bury_hopeless(connection: PoolConnection) -> int:
    """End what no attempt will end: the last one's process was killed, or the circuit has been open for too long."""
    buried = await connection.fetchval(
        f"""
        WITH buried AS (
            UPDATE deliveries
            SET state = 'dead', ended_at = now(), claimed_until = NULL,
                last_error = CASE
                    WHEN attempts_left = 0 THEN 'the process that made the last attempt ended'
                    ELSE 'the endpoint failed all the time: ' || coalesce(last_error, 'no attempt at this message')
                END
            WHERE state = 'pending' AND {_UNLOCKED} AND (
                attempts_left = 0
                OR (expires_at <= now() AND endpoint IN (SELECT endpoint FROM endpoint_circuits WHERE state = 'open'))
            )
            RETURNING id
        )
        SELECT count(*) FROM buried
        """  # noqa: S608 - our own text
    )
    return cast("int", buried)


async def count_pending(connection: PoolConnection) -> int:
    """Return how many deliveries are not at their end."""
    return cast("int", await connection.fetchval("SELECT count(*) FROM deliveries WHERE state = 'pending'"))


# Budgets


async def enabled_budgets(connection: PoolConnection) -> list[EnabledBudget]:
    """Return all budgets that are in force."""
    rows = await connection.fetch(
        """
        SELECT id, tenant, name, scope, scope_id, limit_nano_usd, period, first_weekday, time_zone, thresholds_percent,
            is_soft
        FROM budgets WHERE enabled AND deleted_at IS NULL
        """
    )
    return [
        EnabledBudget(
            tenant=row["tenant"],
            budget=Budget(
                id=row["id"],
                name=row["name"],
                scope=row["scope"],
                scope_id=row["scope_id"],
                limit_nano_usd=row["limit_nano_usd"],
                period=row["period"],
                first_weekday=row["first_weekday"],
                time_zone=row["time_zone"],
                thresholds_percent=tuple(row["thresholds_percent"]),
                is_soft=row["is_soft"],
            ),
        )
        for row in rows
    ]


async def look(connection: PoolConnection) -> None:
    """Fail where this room's work would: claim nothing, read no budget."""
    async with connection.transaction():
        await claim(connection, most=0, per_endpoint=1)
    await enabled_budgets(connection)


def _time(us: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=us)
