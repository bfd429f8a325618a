"""The migration files themselves, and the address that dbmate is given."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate.store.migrations import MIGRATIONS, MigrationError, _url_for_dbmate

FILES = sorted(MIGRATIONS.glob("*.sql"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_migration_has_a_number_of_its_own_and_both_parts(path: Path) -> None:
    assert re.fullmatch(r"0[123]\d\d_[a-z0-9_]+\.sql", path.name)
    assert [other.name[:4] for other in FILES].count(path.name[:4]) == 1
    text = path.read_text()
    assert "-- migrate:up" in text
    assert "-- migrate:down" in text


class Listener:
    """Answers an SSLRequest with one byte."""

    def __init__(self, answer: bytes) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.answer = answer
        self.asked: list[bytes] = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        connection, _ = self.socket.accept()
        with connection:
            self.asked.append(connection.recv(8))
            connection.sendall(self.answer)


@pytest.fixture(params=[b"S", b"N"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    made = Listener(request.param)
    yield made
    made.socket.close()


@pytest.mark.parametrize("query", ["", "?sslmode=prefer", "?sslmode=allow"])
def test_sslmode_follows_the_server_when_the_dsn_leaves_it_open(listener: Listener, query: str) -> None:
    url = _url_for_dbmate(f"postgresql://me:p%40ss@127.0.0.1:{listener.port}/db{query}", time.monotonic() + 5)
    wanted = "require" if listener.answer == b"S" else "disable"
    assert url == f"postgres://me:p%40ss@127.0.0.1:{listener.port}/db?sslmode={wanted}"
    assert listener.asked == [bytes.fromhex("0000000804d2162f")]


@pytest.mark.parametrize("mode", ["disable", "require", "verify-ca", "verify-full"])
def test_sslmode_stays_when_the_dsn_sets_it(mode: str) -> None:
    url = _url_for_dbmate(f"postgresql://me@nowhere.invalid/db?sslmode={mode}", time.monotonic())
    assert url == f"postgres://me@nowhere.invalid/db?sslmode={mode}"


def test_migrate_gives_up_with_the_address_when_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(MigrationError, match=f"127.0.0.1:{port}"):
        _url_for_dbmate(f"postgresql://127.0.0.1:{port}/db", time.monotonic())
