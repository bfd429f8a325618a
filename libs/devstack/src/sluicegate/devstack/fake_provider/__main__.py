"""`sluicegate fake-provider`: the provider as a process."""

import asyncio
import signal
from typing import Annotated

import typer
import uvloop

from sluicegate.devstack.fake_provider.server import running


def main(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8089,
) -> None:
    """Run a fake OpenAI-compatible provider, for tests, demos and benchmarks."""
    uvloop.run(_serve(host, port))


async def _serve(host: str, port: int) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    async with running(host, port) as provider:
        print(f"fake provider listens on {provider.url}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    typer.run(main)
