"""`sluicegate budget-alert` and `python -m sluicegate.budget_alert`."""

import uvloop

from sluicegate.budget_alert.config import AlertSettings
from sluicegate.budget_alert.wiring import run
from sluicegate.runtime import logs, telemetry
from sluicegate.runtime.settings import load
from sluicegate.runtime.stopping import stop_event


async def _serve(settings: AlertSettings) -> None:
    await run(settings, stop_event())


def main() -> None:
    """Store and deliver alerts about budgets, and audit the meters."""
    settings = load(AlertSettings)
    logs.configure("budget-alert", settings.log_level, settings.log_format)
    shutdown_telemetry = telemetry.configure("budget-alert")
    try:
        uvloop.run(_serve(settings))
    finally:
        shutdown_telemetry()


if __name__ == "__main__":
    main()
