"""What a person sees of a start."""

import io
import json
import shlex

from rich.console import Console

from sluicegate.devstack.stack.console import Progress, curl_line
from sluicegate.devstack.stack.reporting import Died, Ready, Report, Reporter, Step, read_reports

_STACK = {
    "edge": {"url": "http://127.0.0.1:8080", "internal_url": "http://127.0.0.1:9080"},
    "admin": {"url": "http://127.0.0.1:8081", "token": "t"},
    "provider": {"url": "http://127.0.0.1:8089"},
    "key": "sgk_" + "a" * 49,
    "model": "demo",
}


def _shown(*reports: Report) -> str:
    out = io.StringIO()
    with Progress(Console(file=out, highlight=False, soft_wrap=True)) as progress:
        for report in reports:
            progress.show(report)
    return out.getvalue()


def test_progress_is_plain_lines_when_there_is_no_terminal() -> None:
    text = _shown(Step("nats", "starting"), Step("nats", "ready", "127.0.0.1:4222"))
    assert "nats" in text
    assert "127.0.0.1:4222" in text
    assert "\x1b" not in text


def test_dead_service_is_named_with_its_last_lines_when_reported() -> None:
    text = _shown(Died("admin", "admin ended with status 3", "one\n[red]two", "/x/admin.log"))
    assert "admin ended with status 3" in text
    assert "/x/admin.log" in text
    assert "    one\n    [red]two\n" in text


def test_curl_line_is_one_unbroken_line_when_shown() -> None:
    line = curl_line(_STACK)
    assert line in _shown(Ready(_STACK)).splitlines()
    words = shlex.split(line)
    assert words[1] == "http://127.0.0.1:8080/v1/chat/completions"
    assert json.loads(words[-1])["model"] == "demo"


def test_reports_come_back_equal_when_sent_over_the_pipe() -> None:
    pipe = io.StringIO()
    reports: list[Report] = [Step("a", "ready", "b"), Died("a", "b", "c\nd", "e"), Ready(_STACK)]
    for report in reports:
        Reporter(pipe)(report)
    pipe.seek(0)
    assert list(read_reports(pipe)) == reports
