"""Counts what PostgreSQL was asked, by application, from its own statement log."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sluicegate.devstack.servers.sql import run_sql

LINE_PREFIX = "%m [%p] app=%a|db=%d|"
_STATEMENT = re.compile(
    rb"\[\d+\] app=(?P<application>[^|]*)\|db=[^|]*\|LOG: +(?:statement|execute [^:]*): (?P<text>.*)"
)


@dataclass(frozen=True)
class LoggedStatement:
    application: str
    text: str
    """Its first line."""


class StatementLog:
    """Statements logged since this object was made (or since `restart()`).

    Each simple query and each execution of a prepared statement is one; `LINE_PREFIX` and `log_statement=all` are
    needed in the server.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.restart()

    def restart(self) -> None:
        """Count from here."""
        self._offset = self._path.stat().st_size

    def statements(self) -> list[LoggedStatement]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            return [
                LoggedStatement(match["application"].decode(), match["text"].decode(errors="replace"))
                for match in map(_STATEMENT.search, file)
                if match
            ]

    def count_by_application(self) -> Counter[str]:
        return Counter(statement.application for statement in self.statements())


def switch_statement_log(dsn: str, log_path: Path, *, enabled: bool) -> StatementLog:
    """Set `log_statement` of a whole server, also for sessions that are open; count from this point.

    For the running stack: `switch_statement_log(stack.postgres_dsn, stack.log("postgres"), enabled=True)`.
    """
    run_sql(dsn, f"alter system set log_statement = '{'all' if enabled else 'none'}'")
    run_sql(dsn, "select pg_reload_conf()")
    return StatementLog(log_path)
