"""Migrations against a real server: from nothing, twice, two at once, and nothing of the working directory."""

import asyncio
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from sluicegate.devstack.servers import PostgresServer
from sluicegate.store.migrations import MIGRATIONS, MigrationError, migrate

VERSIONS = sorted(path.name.split("_")[0] for path in MIGRATIONS.glob("*.sql"))


async def applied(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        return [row["version"] for row in await connection.fetch("SELECT version FROM schema_migrations ORDER BY 1")]
    finally:
        await connection.close()


def other_database(dsn: str, name: str) -> str:
    address, _, rest = dsn.rpartition("/")
    return f"{address}/{name}?{rest.partition('?')[2]}"


async def test_migrate_makes_the_database_and_does_nothing_the_second_time(empty_postgres_dsn: str) -> None:
    dsn = other_database(empty_postgres_dsn, "made_by_migrate")
    migrate(dsn)
    assert await applied(dsn) == VERSIONS
    assert "Applying" not in migrate(dsn)
    assert await applied(dsn) == VERSIONS


async def test_migrate_ends_well_for_both_when_two_run_at_once(empty_postgres_dsn: str) -> None:
    dsn = other_database(empty_postgres_dsn, "two_at_once")
    connection = await asyncpg.connect(empty_postgres_dsn)
    await connection.execute("CREATE DATABASE two_at_once")
    await connection.close()
    await asyncio.gather(*(asyncio.to_thread(migrate, dsn) for _ in range(3)))
    assert await applied(dsn) == VERSIONS


async def test_command_reads_nothing_of_the_working_directory(empty_postgres_dsn: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("DATABASE_URL=postgres://nowhere.invalid/x\nDBMATE_MIGRATIONS_TABLE=elsewhere\n")
    done = subprocess.run(
        [sys.executable, "-m", "sluicegate.store"],
        env={"SLUICEGATE_POSTGRES_DSN": empty_postgres_dsn, "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert await applied(empty_postgres_dsn) == VERSIONS
    assert [path.name for path in tmp_path.iterdir()] == [".env"]


def test_migrate_says_why_when_the_password_is_wrong(postgres_server: PostgresServer) -> None:
    dsn = postgres_server.dsn().replace(postgres_server.password, "wrong")
    with pytest.raises(MigrationError, match="password authentication failed"):
        migrate(dsn, wait_s=1)
