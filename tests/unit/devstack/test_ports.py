"""Free ports and who listens on them."""

import os
import socket

from sluicegate.devstack.servers.ports import free_port, is_free, listens


def test_free_port_is_another_one_when_the_preferred_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert not is_free(taken)
        assert free_port(taken) != taken
    assert free_port(taken) == taken
    assert free_port(taken, avoid={taken}) != taken


def test_port_is_taken_when_its_owner_shares_it() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert not is_free(server.getsockname()[1])


def test_listens_tells_our_process_from_a_stranger_when_both_live() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listens(os.getpid(), port) is True
        assert listens(os.getpid(), free_port(avoid={port})) is False
    assert listens(os.getpid(), port) is False
