"""What a measurement was made on and with: no names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from scripts.bench.workloads import THREADS

PACKAGES = ("torch", "transformers", "trl", "peft")


def main(pipe: Connection) -> None:
    """A process of its own, because it imports torch: sends what torch sees."""
    import torch

    pipe.send({"cuda": torch.cuda.is_available(), "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None})


def load() -> float:
    """Processes that have wanted to run in the last minute: what else the machine does, when nothing is measured yet."""
    return round(os.getloadavg()[0], 2)


def machine(about: dict[str, Any], load: float) -> dict[str, Any]:
    """about: what main sent. load: before the measurement."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    named = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    commit = subprocess.run(named, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    return {
        "device": about["gpu"] or _cpu(),
        "cuda": about["cuda"],
        "threads": THREADS,
        "load": load,
        "python": platform.python_version(),
        "commit": commit or None,
        "versions": versions,
    }


def _cpu() -> str:
    """Model name of the processor."""
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()
