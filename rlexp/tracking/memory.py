"""Peak memory of this process: resident set on a CPU, allocated on a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import torch


class Memory:
    """Above what it was when this was made."""

    def __init__(self) -> None:
        self.cuda = torch.cuda.is_available()
        self.base = torch.cuda.memory_allocated() if self.cuda else _status("VmRSS")

    def reset(self) -> None:
        """Forget the peak so far."""
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM to the present VmRSS (man 5 proc)

    @property
    def peak(self) -> int:
        """Bytes above the base since the last reset."""
        return (torch.cuda.max_memory_allocated() if self.cuda else _status("VmHWM")) - self.base


def _status(key: str) -> int:
    """A field of /proc/self/status in bytes."""
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, f"/proc/self/status has no {key}"
    return int(found[1]) * 1024
