"""`sluicegate retention` and `python -m sluicegate.retention`."""

import asyncio

from sluicegate.retention.config import RetentionSettings
from sluicegate.retention.wiring import run
from sluicegate.runtime import logs, telemetry
from sluicegate.runtime.settings import load
from sluicegate.runtime.stopping import stop_event


async def _serve(settings: RetentionSettings) -> None:
    await run(settings, stop_event())


def main() -> None:
    """Make the partitions of the days ahead."""
    settings = load(RetentionSettings)
    logs.configure("retention", settings.log_level, settings.log_format)
    shutdown_telemetry = telemetry.configure("retention")
    try:
        asyncio.run(_serve(settings))
    finally:
        shutdown_telemetry()


if __name__ == "__main__":
    main()
