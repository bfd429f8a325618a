"""Counting statements in a log, without a server."""

from pathlib import Path

from sluicegate.devstack.servers.statement_log import StatementLog

_LOG = """\
2026-11-30 09:00:00.000 UTC [10] app=sluicegate-admin|db=x|LOG:  statement: select 1
\tfrom t
2026-11-30 09:00:00.000 UTC [11] app=sluicegate-edge|db=x|LOG:  execute __asyncpg_stmt_1__: select 2
2026-11-30 09:00:00.000 UTC [12] app=|db=|LOG:  checkpoint starting: time
2026-11-30 09:00:00.000 UTC [12] app=sluicegate-admin|db=x|DETAIL:  statement: no
2026-11-30 09:00:00.000 UTC [12] app=sluicegate-admin|db=x|ERROR:  LOG:  statement: no
2026-11-30 09:00:00.000 UTC [12] app=a b|db=x|LOG:  execute <unnamed>: commit
"""


def test_statements_are_counted_by_application_when_logged_either_way(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("2026 [1] app=old|db=x|LOG:  statement: before\n")
    log = StatementLog(path)
    with path.open("a") as file:
        file.write(_LOG)
    assert log.count_by_application() == {"sluicegate-admin": 1, "sluicegate-edge": 1, "a b": 1}
    assert [statement.text for statement in log.statements()] == ["select 1", "select 2", "commit"]
    log.restart()
    assert log.statements() == []
