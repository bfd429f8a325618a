"""Everything of uvicorn that the protocol class leans on, and of which uvicorn promises nothing.

uvicorn's minor version is pinned; when the pin moves, this says what has to be looked at.
"""

import inspect

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import Server, ServerState

from sluicegate.edge.inbound.protocol import EdgeProtocol


async def nothing(scope: object, receive: object, send: object) -> None:
    pass


@pytest.fixture
async def parent() -> HttpToolsProtocol:
    return HttpToolsProtocol(uvicorn.Config(nothing), ServerState(), {})


def test_version_is_the_one_that_was_read() -> None:
    assert uvicorn.__version__.startswith("0.54.")


def test_constructors_take_what_they_took() -> None:
    expected = ["self", "config", "server_state", "app_state", "_loop"]
    assert list(inspect.signature(HttpToolsProtocol.__init__).parameters) == expected
    assert list(inspect.signature(EdgeProtocol.__init__).parameters) == expected
    assert "config.http_protocol_class(" in inspect.getsource(Server.startup)


async def test_connection_has_the_state_that_is_used(parent: HttpToolsProtocol) -> None:
    assert isinstance(parent.parser, httptools.HttpRequestParser)
    state = vars(parent)
    assert [state[name] for name in ("cycle", "transport", "flow", "client", "timeout_keep_alive_task")] == [None] * 5
    assert not parent.pipeline
    assert parent.connections is parent.server_state.connections
    assert parent.tasks is parent.server_state.tasks
    assert parent.server_state.total_requests == 0


@pytest.mark.parametrize(
    "name",
    [
        "connection_made", "connection_lost", "eof_received", "data_received", "send_400_response", "on_message_begin",
        "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete", "_start_asgi_task",
        "on_response_complete", "shutdown", "pause_writing", "resume_writing", "_unset_keepalive_if_required",
    ],
)  # fmt: skip
def test_parent_has_the_methods_that_are_overridden_or_called(name: str) -> None:
    assert callable(getattr(HttpToolsProtocol, name))


def test_parent_starts_each_cycle_where_it_can_be_put_in_line() -> None:
    source = inspect.getsource(HttpToolsProtocol.on_headers_complete)
    assert "existing_cycle is None or existing_cycle.response_complete" in source
    assert "self._start_asgi_task(self.cycle, app)" in source
    assert "on_response=self.on_response_complete" in source


def test_cycle_has_what_is_used() -> None:
    names = inspect.signature(RequestResponseCycle.__init__).parameters
    assert {"keep_alive", "on_response", "scope"} <= set(names)
    source = inspect.getsource(RequestResponseCycle.__init__)
    assert "self.keep_alive = keep_alive" in source
    assert "self.response_complete = False" in source
    # The cycle closes its connection itself, and tells us afterwards.
    assert "if not self.keep_alive:" in inspect.getsource(RequestResponseCycle.send)


def test_flow_control_tells_whether_the_client_takes_bytes() -> None:
    assert {"pause_writing", "resume_writing"} <= set(dir(FlowControl))
    assert "self.write_paused = False" in inspect.getsource(FlowControl.__init__)


def test_server_stops_in_the_order_that_is_relied_on() -> None:
    source = inspect.getsource(Server.shutdown)
    steps = ["server.close()", "connection.shutdown()", "_wait_tasks_to_complete()", "lifespan.shutdown()"]
    places = [source.index(step) for step in steps]
    assert places == sorted(places)
    assert "self.server_state.connections" in inspect.getsource(Server._wait_tasks_to_complete)


def test_every_override_is_one() -> None:
    """A method that the parent no longer has would never be called."""
    own = {name for name, value in vars(EdgeProtocol).items() if inspect.isfunction(value) and name.startswith("on_")}
    assert own <= set(dir(HttpToolsProtocol))
