"""sweep.json: the jobs a sweep consists of, so that those that never made a folder are known too."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FILE = "sweep.json"


def record_jobs(folder: Path, jobs: Mapping[str, Sequence[str]], reasons: Mapping[str, str] | None = None) -> None:
    """Add jobs (folder name -> overrides) to a sweep's record; reasons: why a job ended as it did, for those that could not say so in a folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    known = recorded_jobs(folder)
    for name, overrides in jobs.items():
        known[name] = {"overrides": list(overrides), "reason": (reasons or {}).get(name, "")}
    temporary = folder / f".{FILE}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, folder / FILE)


def recorded_jobs(folder: Path) -> dict[str, Any]:
    """Folder name -> {overrides, reason} of a sweep's jobs; {} for a folder of runs that no sweep made."""
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
