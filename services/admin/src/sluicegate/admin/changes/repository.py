"""SQL of the audit and the outbox."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sluicegate.contracts.catalogue import Noun
from sluicegate.store.pool import PoolConnection


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A change; `before` and `after` are JSON."""

    event_id: str
    actor: str
    address: str | None
    noun: str
    record_id: str
    verb: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A record whose state must be told, and the audit event that goes with it; `is_projected`: only the event."""

    noun: Literal["key", "webhook"] | Noun
    record_id: str
    event_id: str | None
    is_projected: bool


_INSERT_AUDIT = """
INSERT INTO audit (event_id, actor, address, noun, record_id, verb, before, after)
SELECT event_id, actor, address, noun, record_id, verb, before::jsonb, after::jsonb
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
    AS row (event_id, actor, address, noun, record_id, verb, before, after)
"""

_INSERT_OUTBOX = """
INSERT INTO outbox (noun, record_id, event_id, is_projected)
SELECT noun, record_id, event_id, is_projected
FROM unnest($1::text[], $2::text[], $3::text[], $4::boolean[])
    WITH ORDINALITY AS row (noun, record_id, event_id, is_projected, place)
ORDER BY place
"""


async def insert_audit(connection: PoolConnection, rows: Sequence[AuditRow]) -> None:
    """Write audit rows, thousands in one statement."""
    if rows:
        await connection.execute(
            _INSERT_AUDIT,
            [row.event_id for row in rows],
            [row.actor for row in rows],
            [row.address for row in rows],
            [row.noun for row in rows],
            [row.record_id for row in rows],
            [row.verb for row in rows],
            [row.before for row in rows],
            [row.after for row in rows],
        )


async def insert_outbox(connection: PoolConnection, rows: Sequence[OutboxRow]) -> None:
    """Write outbox rows, in order."""
    if rows:
        await connection.execute(
            _INSERT_OUTBOX,
            [row.noun for row in rows],
            [row.record_id for row in rows],
            [row.event_id for row in rows],
            [row.is_projected for row in rows],
        )
