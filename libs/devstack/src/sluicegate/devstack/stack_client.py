"""A running stack as tests and benchmarks see it: what `.sluicegate/stack.json` says. Imports nothing heavy."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Stack:
    """Addresses, secrets and processes. `reload()` for the processes of now: workers come and go."""

    path: Path
    edge_url: str
    edge_internal_url: str
    admin_url: str
    admin_token: str
    provider_url: str
    nats_url: str
    postgres_dsn: str
    redis_url: str
    key: str
    model: str
    processes: dict[str, tuple[int, ...]]

    @classmethod
    def read(cls, path: Path = Path(".sluicegate/stack.json")) -> "Stack":
        """Raises FileNotFoundError when no stack is ready there."""
        found: dict[str, Any] = json.loads(path.read_text())
        return cls(
            path=path,
            edge_url=found["edge"]["url"],
            edge_internal_url=found["edge"]["internal_url"],
            admin_url=found["admin"]["url"],
            admin_token=found["admin"]["token"],
            provider_url=found["provider"]["url"],
            nats_url=found["nats"]["url"],
            postgres_dsn=found["postgres"]["dsn"],
            redis_url=found["redis"]["url"],
            key=found["key"],
            model=found["model"],
            processes={name: tuple(pids) for name, pids in found["processes"].items()},
        )

    def reload(self) -> "Stack":
        return Stack.read(self.path)

    @property
    def openai_base_url(self) -> str:
        return f"{self.edge_url}/v1"

    @property
    def admin_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.admin_token}"}

    def log(self, name: str) -> Path:
        """The log file of a service or server."""
        return self.path.parent / "logs" / f"{name}.log"

    def all_pids(self) -> list[int]:
        return [pid for pids in self.processes.values() for pid in pids]
