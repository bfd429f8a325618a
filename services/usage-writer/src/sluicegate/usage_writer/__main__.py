"""`sluicegate usage-writer` and `python -m sluicegate.usage_writer`."""

import gc

import uvloop

from sluicegate.runtime import logs, telemetry
from sluicegate.runtime.settings import load
from sluicegate.runtime.stopping import stop_event
from sluicegate.usage_writer.config import WriterSettings
from sluicegate.usage_writer.wiring import run


async def _serve(settings: WriterSettings) -> None:
    await run(settings, stop_event())


def main() -> None:
    """Store usage events and answer what was spent."""
    settings = load(WriterSettings)
    logs.configure("usage-writer", settings.log_level, settings.log_format)
    shutdown_telemetry = telemetry.configure("usage-writer")
    # A batch makes tens of thousands of objects without cycles; looking through them cost a quarter of all CPU.
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    try:
        uvloop.run(_serve(settings))
    finally:
        shutdown_telemetry()


if __name__ == "__main__":
    main()
