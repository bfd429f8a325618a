"""Telemetry costs nothing until a collector is named, and reaches it then."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

PROGRAM = textwrap.dedent("""
    import sys
    from sluicegate.runtime import telemetry
    shutdown = telemetry.configure("edge")
    if "opentelemetry.sdk" in sys.modules:
        from opentelemetry import trace
        with trace.get_tracer("t").start_as_current_span("s"):
            pass
        print("on")
    shutdown()
""")


class Collector(HTTPServer):
    """Keeps what was posted to it."""

    paths: list[str]
    bodies: bytes = b""


class Handler(BaseHTTPRequestHandler):
    """Says yes to everything."""

    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        self.server.paths.append(self.path)
        self.server.bodies += self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector(("127.0.0.1", 0), Handler)
    server.paths = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def run(**environment: str) -> str:
    """Run the program with only this environment."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_sdk_is_not_imported_when_no_collector_is_named() -> None:
    assert run() == ""


def test_sdk_is_not_imported_when_it_is_disabled() -> None:
    assert run(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", OTEL_SDK_DISABLED="true") == ""


def test_spans_reach_the_collector_when_it_is_named(collector: Collector) -> None:
    assert run(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.server_port}") == "on"
    assert "/v1/traces" in collector.paths
    assert b"sluicegate-edge" in collector.bodies
