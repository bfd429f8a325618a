"""What `/readyz` says while nothing can be stored, and that it takes it back by itself."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluicegate.devstack.room_process import RoomProcess
from sluicegate.devstack.usage_checks import rollup_differences
from sluicegate.devstack.usage_events import usage_event
from sluicegate.devstack.waiting import until

Publish = Callable[..., Awaitable[int]]
UntilRead = Callable[[int], Awaitable[None]]
NewWriter = Callable[..., RoomProcess]

REFUSE_ALL = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the disk is made of cheese'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON usage_last_used FOR EACH ROW EXECUTE FUNCTION refuse();
"""


async def said(writer: RoomProcess, part: str, *words: str) -> bool:
    """Tell whether a part is not ready, and says all these words."""
    answer = await writer.get("/readyz")
    state = answer.json()["parts"][part]
    return answer.status_code == 503 and not state["ready"] and all(word in state["detail"] for word in words)


@pytest.mark.parametrize(
    ("breaking", "mending", "missing"),
    [
        ("ALTER TABLE usage RENAME COLUMN overhead_us TO ovh", "ALTER TABLE usage RENAME COLUMN ovh TO overhead_us", "overhead_us"),
        ("ALTER TABLE usage_detail DROP COLUMN guard", "ALTER TABLE usage_detail ADD COLUMN guard jsonb", "guard"),
        ("ALTER TABLE usage_series RENAME COLUMN streamed TO s", "ALTER TABLE usage_series RENAME COLUMN s TO streamed", "streamed"),
        (
            "ALTER FUNCTION usage_latency_merge RENAME TO old_merge",
            "ALTER FUNCTION old_merge RENAME TO usage_latency_merge",
            "usage_latency_merge",
        ),
    ],
    ids=["usage", "detail", "series", "function"],
)  # fmt: skip
async def test_writer_names_the_migration_until_the_schema_is_what_it_needs(
    database: Any,
    publish: Publish,
    until_read: UntilRead,
    new_writer: NewWriter,
    breaking: str,
    mending: str,
    missing: str,
) -> None:
    await database.execute(breaking)
    writer = new_writer()
    writer.start()
    await writer.until_unready()
    await until(lambda: said(writer, "postgres", missing, "run `sluicegate migrate`"), "it names the migration")
    last = await publish([usage_event(end_user="somebody")])
    await until(lambda: said(writer, "storing", missing), "it says that nothing is stored")
    await database.execute(mending)
    await until_read(last)
    await writer.until_ready()
    assert await database.fetchval("SELECT count(*) FROM usage") == 1
    assert await database.fetchval("SELECT end_user FROM usage_detail") == "somebody"
    assert await rollup_differences(database) == []


async def test_writer_notices_when_the_schema_changes_under_it(
    database: Any, publish: Publish, until_read: UntilRead, new_writer: NewWriter
) -> None:
    writer = new_writer()
    writer.start()
    await until_read(await publish([usage_event(end_user="before")]))
    await writer.until_ready()
    await database.execute("ALTER TABLE usage_rollup RENAME COLUMN duration TO d")
    await until(lambda: said(writer, "postgres", "duration", "run `sluicegate migrate`"), "it names the migration")
    await database.execute("ALTER TABLE usage_rollup RENAME COLUMN d TO duration")
    await writer.until_ready()
    await until_read(await publish([usage_event(end_user="after")]))
    assert await database.fetchval("SELECT count(*) FROM usage_detail") == 2


async def test_writer_names_the_right_that_it_lacks(database: Any, dsn: str, new_writer: NewWriter) -> None:
    role = f"writer_{dsn.rpartition('/')[2].partition('?')[0]}"
    await database.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'w'; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; "
        f"REVOKE UPDATE ON usage_rollup FROM {role}; GRANT CREATE ON SCHEMA public TO {role}"
    )
    address = dsn.partition("@")[2]
    writer = new_writer(f"postgresql://{role}:w@{address}")
    writer.start()
    await writer.until_unready()
    await until(lambda: said(writer, "postgres", "permission denied for table usage_rollup"), "it names the right")
    assert "migrate" not in (await writer.get("/readyz")).text
    await database.execute(f"GRANT UPDATE ON usage_rollup TO {role}")
    await writer.until_ready()
    assert await writer.stop_gently() == 0
    await database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_writer_is_unready_with_the_reason_while_only_real_rows_are_refused(
    database: Any, publish: Publish, until_read: UntilRead, new_writer: NewWriter
) -> None:
    await database.execute(REFUSE_ALL)
    writer = new_writer()
    writer.start()
    await writer.until_ready()
    last = await publish([usage_event()])
    await until(lambda: said(writer, "storing", "not stored", "made of cheese"), "it says why")
    assert (await writer.get("/livez")).status_code == 200
    await database.execute("DROP TRIGGER refuse ON usage_last_used")
    await until_read(last)
    await writer.until_ready()
    assert await database.fetchval("SELECT count(*) FROM usage") == 1


async def test_trial_leaves_nothing_behind(database: Any, new_writer: NewWriter) -> None:
    writer = new_writer()
    writer.start()
    await writer.until_ready()
    for table in ("usage", "usage_detail", "usage_rollup", "usage_last_used", "usage_name", "usage_series"):
        assert await database.fetchval(f"SELECT count(*) FROM {table}") == 0, table
