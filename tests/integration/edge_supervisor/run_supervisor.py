"""The real supervisor over fake workers: `python run_supervisor.py [fault]`."""

import asyncio
import sys
from pathlib import Path

from sluicegate.edge.config import EdgeSettings
from sluicegate.edge.supervisor.ports import PortTakenError
from sluicegate.edge.supervisor.supervisor import supervise
from sluicegate.runtime import logs
from sluicegate.runtime.settings import load

if __name__ == "__main__":
    logs.configure("edge")
    command = (sys.executable, str(Path(__file__).with_name("fake_worker.py")), *sys.argv[1:])
    try:
        raise SystemExit(asyncio.run(supervise(load(EdgeSettings), command)))
    except PortTakenError as error:
        raise SystemExit(str(error)) from None
