"""Who may have the shared port."""

import socket
from collections.abc import Iterator

import pytest

from sluicegate.edge.supervisor.ports import PortTakenError, bind_shared, reserve

HOST = "127.0.0.1"


@pytest.fixture
def reserved() -> Iterator[int]:
    with reserve(HOST, 0) as held:
        yield held.getsockname()[1]


def test_reserved_port_takes_no_client(reserved: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, reserved), timeout=5)


def test_worker_gets_no_client_before_it_listens(reserved: int) -> None:
    with bind_shared(HOST, reserved), pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, reserved), timeout=5)


def test_workers_listen_side_by_side_on_a_reserved_port(reserved: int) -> None:
    with bind_shared(HOST, reserved) as one, bind_shared(HOST, reserved) as other:
        assert not one.getblocking()
        one.listen(64)
        other.listen(64)
        accepted = 0
        clients = [socket.create_connection((HOST, reserved), timeout=5) for _ in range(64)]
        for listener in (one, other):
            before = accepted
            while True:
                try:
                    listener.accept()[0].close()
                except BlockingIOError:
                    break
                accepted += 1
            assert accepted > before
        for client in clients:
            client.close()
        assert accepted == 64


def test_second_reservation_is_refused_while_nobody_listens(reserved: int) -> None:
    with pytest.raises(PortTakenError, match="taken by another program"):
        reserve(HOST, reserved)


@pytest.mark.parametrize("option", [None, socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_reservation_is_refused_when_a_stranger_listens(option: int | None) -> None:
    with socket.socket() as stranger:
        if option is not None:
            stranger.setsockopt(socket.SOL_SOCKET, option, 1)
        stranger.bind((HOST, 0))
        stranger.listen()
        with pytest.raises(PortTakenError):
            reserve(HOST, stranger.getsockname()[1])


@pytest.mark.parametrize("options", [(socket.SO_REUSEADDR,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)])
def test_reservation_is_granted_when_only_dead_connections_linger(options: tuple[int, ...]) -> None:
    with socket.socket() as listener:
        for option in options:
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
        listener.bind((HOST, 0))
        listener.listen()
        port = listener.getsockname()[1]
        client = socket.create_connection((HOST, port), timeout=5)
        accepted, _ = listener.accept()
        accepted.close()  # closes first: TIME_WAIT stays on this side
        client.close()
    with reserve(HOST, port) as held:
        assert held.getsockname()[1] == port


def test_reservation_names_an_address_that_is_not_ours() -> None:
    with pytest.raises(PortTakenError, match="is no address of this machine"):
        reserve("no.such.host.invalid", 0)


def test_reservation_works_on_ipv6() -> None:
    try:
        held = reserve("::1", 0)
    except PortTakenError:
        pytest.skip("no IPv6 here")
    with held, bind_shared("::1", held.getsockname()[1]) as listener:
        assert listener.family == socket.AF_INET6
