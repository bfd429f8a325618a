"""Embedded servers: ready means ours, data survives what it should, and nothing survives its parent."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import nats
import psutil
import pytest

from sluicegate.devstack.servers import EmbeddedServer, NatsServer, PostgresServer, ServerError, ValkeyServer
from sluicegate.devstack.servers.process import is_alive, spawn

KINDS: list[type[EmbeddedServer]] = [NatsServer, ValkeyServer, PostgresServer]
ODD_NAME = "zwölf #1 {x} $HOME 'it' \"q\" [a*]"


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def make_server(
    request: pytest.FixtureRequest, servers_folder: Path, tmp_path: Path
) -> Iterator[Callable[..., EmbeddedServer]]:
    """Servers below a folder that nobody else may enter, or (`is_open`) one that all may."""
    made: list[EmbeddedServer] = []

    def make(*, is_open: bool = True, port: int | None = None) -> EmbeddedServer:
        folder = (servers_folder if is_open else tmp_path) / f"{request.node.name}-{len(made)} {ODD_NAME}"
        server: EmbeddedServer = request.param(folder, port=port)
        made.append(server)
        return server

    yield make
    for server in made:
        server.kill()


@pytest.mark.parametrize("is_open", [True, False], ids=["open folder", "closed folder"])
def test_server_serves_and_its_data_survives_when_restarted_or_killed(
    make_server: Callable[..., EmbeddedServer], is_open: bool
) -> None:
    server = make_server(is_open=is_open)
    server.start()
    port = server.port
    _write(server)
    for bring_down in (server.stop, server.kill):
        bring_down()
        assert not server.is_running
        server.start()
        assert server.port == port
        assert _has_data(server)
    server.stop()
    server.wipe()
    server.start()
    assert not _has_data(server)


def test_server_takes_another_port_when_the_wished_one_is_taken(make_server: Callable[..., EmbeddedServer]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        server = make_server(port=stranger.getsockname()[1])
        server.start()
        assert server.port != stranger.getsockname()[1]
        _write(server)


def test_server_takes_another_port_when_it_is_snatched_before_the_bind(
    make_server: Callable[..., EmbeddedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken = stranger.getsockname()[1]
        answers = [taken]
        original = sys.modules["sluicegate.devstack.servers.embedded"].free_port
        monkeypatch.setattr(
            "sluicegate.devstack.servers.embedded.free_port", lambda wish: answers.pop() if answers else original(wish)
        )
        server = make_server()
        server.start()
        assert server.port != taken
        _write(server)


def test_start_fails_when_the_port_was_taken_during_a_stop(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    server.start()
    server.stop()
    with socket.create_server(("127.0.0.1", server.port)), pytest.raises(ServerError, match="taken"):
        server.start()


def test_nobody_gets_in_when_the_password_is_missing(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    server.start()
    stranger = type(server)(server.directory, password="wrong")
    stranger._port, stranger._process = server.port, server.process
    assert server.answers()
    assert not stranger.answers()


def test_paused_server_answers_nothing_until_it_is_resumed(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    server.start()
    server.pause()
    with socket.create_connection(("127.0.0.1", server.port), timeout=0.3) as connection:
        connection.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(1)
    server.resume()
    assert server.answers()


def test_no_server_is_left_when_its_parent_is_killed(make_server: Callable[..., EmbeddedServer]) -> None:
    directory = make_server().directory
    kind = type(make_server())
    program = (
        f"import pathlib, signal; from sluicegate.devstack.servers import {kind.__name__} as Kind\n"
        f"server = Kind(pathlib.Path({str(directory)!r})); server.start(); print(server.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        family = [server, *server.children(recursive=True)]
        parent.kill()
        _, alive = psutil.wait_procs(family, timeout=10)
        assert alive == []


def test_spawn_is_refused_when_not_on_the_main_thread(tmp_path: Path) -> None:
    caught: list[BaseException] = []

    def try_it() -> None:
        try:
            spawn(["true"], log_path=tmp_path / "log")
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_stop_kills_descendants_when_the_process_does_not_end(tmp_path: Path) -> None:
    script = "trap '' TERM; setsid sleep 60 & echo $! ; while :; do sleep 0.1; done"
    process = spawn(["/bin/sh", "-c", script], log_path=tmp_path / "log")
    deadline = time.monotonic() + 10
    while not process.log_tail() and time.monotonic() < deadline:
        time.sleep(0.01)
    grandchild = psutil.Process(int(process.log_tail()))
    assert process.stop(signal.SIGTERM, deadline_s=0.2) == -signal.SIGKILL
    assert not is_alive(grandchild)


def test_postgres_is_not_run_by_root_when_the_folder_is_open(
    servers_folder: Path, own_postgres: Callable[[], PostgresServer]
) -> None:
    server = own_postgres()
    assert server.execute("show data_directory") == str((server.directory / "data").resolve())
    if os.geteuid() == 0:
        assert psutil.Process(server.pid).uids().real != 0
        assert servers_folder.stat().st_uid == 0


async def test_statements_are_counted_by_application_when_logging_is_on(
    own_postgres: Callable[[], PostgresServer],
) -> None:
    server = own_postgres()
    log = server.log_statements(enabled=True)
    connection = await asyncpg.connect(server.url, server_settings={"application_name": "sluicegate-test"})
    log.restart()
    for _ in range(10):
        await connection.fetchval("select 1 + $1::int", 1)
    await connection.close()
    assert log.count_by_application()["sluicegate-test"] == 10
    server.log_statements(enabled=False)
    quiet = server.log_statements(enabled=False)
    server.execute("select 3")
    assert quiet.statements() == []


def test_each_module_gets_its_own_migrated_database(postgres_dsn: str, postgres_server: PostgresServer) -> None:
    database = postgres_dsn.rsplit("/", 1)[1].split("?", maxsplit=1)[0]
    assert database != "migrated_template"
    assert int(postgres_server.execute("select count(*) from schema_migrations", database)) > 0


async def test_jetstream_is_on_when_nats_is_ready(nats_url: str) -> None:
    connection = await nats.connect(nats_url)
    assert (await connection.jetstream().account_info()).streams == 0
    await connection.close()


def _write(server: EmbeddedServer) -> None:
    if isinstance(server, PostgresServer):
        server.execute("create table marks (id int); insert into marks values (1)")
    elif isinstance(server, ValkeyServer):
        assert _valkey(server, "SET mark 1") == b"+OK\r\n"
    else:
        assert b'"error"' not in _jetstream(server, "STREAM.CREATE.MARK", b'{"name":"MARK","subjects":["mark"]}')


def _has_data(server: EmbeddedServer) -> bool:
    if isinstance(server, PostgresServer):
        return server.execute("select to_regclass('marks') is not null") == "t"
    if isinstance(server, ValkeyServer):
        return _valkey(server, "EXISTS mark") == b":1\r\n"
    return b'"error"' not in _jetstream(server, "STREAM.INFO.MARK", b"")


def _valkey(server: ValkeyServer, command: str) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        stream = connection.makefile("rwb")
        stream.write(f"AUTH {server.password}\r\n{command}\r\n".encode())
        stream.flush()
        stream.readline()
        return stream.readline()


def _jetstream(server: EmbeddedServer, call: str, body: bytes) -> bytes:
    """One JetStream API call by hand, so that this works inside and outside of a loop."""
    login = f'CONNECT {{"user":"{server.user}","pass":"{server.password}","verbose":false}}\r\n'
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        stream = connection.makefile("rwb")
        stream.readline()
        stream.write(f"{login}SUB answer 1\r\nPUB $JS.API.{call} answer {len(body)}\r\n".encode() + body + b"\r\n")
        stream.flush()
        while not (line := stream.readline()).startswith(b"MSG"):
            assert line
        return stream.read(int(line.split()[-1]))
