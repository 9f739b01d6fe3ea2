"""A stand-in for the wandb package that writes what it is asked to a file and fails on demand, and a run folder as trackers see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FAKE_WANDB = '''
import json, os, time

_count = 0


def _record(call, **fields):
    with open(os.environ["FAKE_WANDB_CALLS"], "a") as file:
        file.write(json.dumps({"call": call, **fields}) + "\\n")


def _fail(call):
    """FAKE_WANDB_PLAN: {"log 2": "raise", "log 3": 60, "finish": "raise"}; a number is seconds of silence."""
    what = json.loads(os.environ.get("FAKE_WANDB_PLAN", "{}")).get(call)
    if what == "raise":
        raise ConnectionError("network is down")
    if what:
        time.sleep(what)


class Run:
    def define_metric(self, name, **kwargs):
        pass

    def log(self, metrics):
        global _count
        _count += 1
        _fail(f"log {_count}")
        _record("log", metrics=metrics)

    def finish(self, exit_code=None):
        _fail("finish")
        _record("finish", exit_code=exit_code)


def init(**kwargs):
    _fail("init")
    _record("init", id=kwargs["id"], group=kwargs["group"], name=kwargs["name"], resume=kwargs["resume"], config=kwargs["config"])
    return Run()
'''


class Folder:
    """What the trackers want of a run folder."""

    def __init__(self, path: Path, sweep: str | None = None) -> None:
        self.path, self.sweep = path, sweep

    @property
    def name(self) -> str:
        return self.path.name

    def load(self, key: str) -> Any:
        file = self.path / f"{key}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def store(self, key: str, value: Any) -> None:
        (self.path / f"{key}.json").write_text(json.dumps(value))
