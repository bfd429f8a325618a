"""The process that the user started: spawns the supervisor, shows its reports, passes signals on."""

import os
import signal
import subprocess
import sys
import time
from types import FrameType

from sluicegate.devstack.servers.process import tail
from sluicegate.devstack.stack.console import Progress
from sluicegate.devstack.stack.layout import Home
from sluicegate.devstack.stack.options import StackOptions
from sluicegate.devstack.stack.reporting import Died, Failed, Note, Ready, read_reports

# A terminal sends Ctrl-C to the whole group, and a wrapper may pass it on: one press arrives twice.
_ONE_PRESS_S = 0.3


def run(options: StackOptions, home: Home) -> int:
    """Start a stack. Detached: return when it is ready. Otherwise: when it has ended."""
    home.create()
    errors = home.logs / "supervisor.err"
    log = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "sluicegate.devstack.stack.supervisor", options.to_json()],
            stdin=subprocess.PIPE,  # its end tells the supervisor that we are gone
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    finally:
        os.close(log)
    _pass_signals_to(supervisor)
    is_explained = False
    with Progress() as progress:
        assert supervisor.stdout is not None
        for report in read_reports(supervisor.stdout):
            progress.show(report)
            is_explained |= isinstance(report, Failed | Died)
            if isinstance(report, Ready):
                if not options.is_tied:
                    progress.show(Note("`sluicegate down` stops it; in a checkout, `./taskw down`."))
                    return 0
                progress.show(Note("Ctrl-C stops it."))
        status = supervisor.wait()
        if status and not is_explained:
            how = f"with status {status}" if status > 0 else f"by {signal.Signals(-status).name}"
            progress.show(Died("supervisor", f"the supervisor ended {how}", tail(errors, 20), str(errors)))
    return 0 if status == 0 else 1


def _pass_signals_to(supervisor: subprocess.Popen[str]) -> None:
    last_press_s = 0.0

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal last_press_s
        now = time.monotonic()
        if now - last_press_s > _ONE_PRESS_S:
            supervisor.send_signal(signal.SIGTERM)
        last_press_s = now

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
