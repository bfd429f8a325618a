"""What a stack's edge counts, from its metrics endpoint."""

from collections.abc import Sequence

import httpx

from sluicegate.devstack.stack_client import Stack


async def metric(stack: Stack, name: str) -> float:
    """Return one of the edge's numbers, added up over its workers."""
    return sum(await metric_by_worker(stack, name))


async def metric_by_worker(stack: Stack, name: str) -> Sequence[float]:
    """Return one of the edge's numbers, as many times as it is there."""
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        lines = (await client.get(f"{stack.edge_internal_url}/metrics")).text.splitlines()
    wanted = f"sluicegate_edge_{name}"
    return [float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == wanted]
