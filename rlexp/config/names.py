"""Names of runs, sweeps and jobs: letters, digits and `._=-`, at most 120 bytes, so that they are safe folder names everywhere."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from rlexp.config.run import RunConfig

LONGEST = 120
"""Bytes of the longest name"""

_BRACKETS = "[]{}'\" "
"""Left out around a value"""

_NOT_IDENTITY = ("sweep", "cluster", "hydra", "run.resume", "run.dry")
"""Overrides that say how a job is run, not what it computes; they enter no name"""
_IDENTITY = ("cluster.nodes", "cluster.processes_per_node")
"""But these change the last bits"""


def _digest(parts: Iterable[str], length: int) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:length]


def safe_name(text: str) -> str:
    """The text with everything but letters, digits and `._=-` replaced; a long one is cut and ends in a hash of the whole."""
    name = re.sub(r"[^A-Za-z0-9._=-]+", "_", text).strip(".") or "_"
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 7]}-{_digest([text], 6)}"


def name_problem(name: str) -> str | None:
    """What is wrong with a name that the user gave, or None."""
    if name == safe_name(name):
        return None
    return f"must be letters, digits and ._=- (no dot at either end), at most {LONGEST} characters, e.g. {safe_name(name)}"


def model_label(config: RunConfig) -> str:
    """The last part of the model's path, or the name of its option."""
    path = getattr(config.model, "path", None)
    return str(path).rstrip("/").rsplit("/", 1)[-1] if path else config.model.name


def run_name(config: RunConfig) -> str:
    """`run.name`, or `<experiment>[-<preset>]-<algorithm>-<loss>-<model>-s<seed>`."""
    if config.run.name is not None:
        return config.run.name
    preset = [] if config.run.preset == "none" else [config.run.preset]
    return safe_name("-".join([config.run.experiment, *preset, config.algorithm.name, config.loss.name, model_label(config), f"s{config.run.seed}"]))


def _identity(overrides: Iterable[str]) -> list[str]:
    """The overrides that matter, sorted: their order and how the jobs are run change no name."""

    def key(override: str) -> str:
        return override.lstrip("+~").partition("=")[0]

    def dropped(override: str) -> bool:
        return key(override) not in _IDENTITY and any(key(override) == word or key(override).startswith((f"{word}.", f"{word}/")) for word in _NOT_IDENTITY)

    return sorted(override for override in overrides if not dropped(override))


def sweep_name(name: str | None, overrides: Iterable[str]) -> str:
    """Folder of a sweep below outputs/sweeps/: `sweep.name`, or a hash of its overrides, so that the same command finds it again.

    overrides: those of the whole sweep; a file of axes (`sweep=loss_seed`) is part of them.
    """
    if name:
        return safe_name(name)
    axes = [override for override in overrides if override.startswith("sweep=")]
    return _digest([*_identity(overrides), *axes], 8)


def job_name(overrides: Iterable[str]) -> str:
    """Folder of one job below its sweep: `<short>-<hash6>`, the same for the same overrides whatever the other jobs are.

    short: each override by the last part of its key, e.g. `loss=dapo-seed=1`. hash6: of the full overrides.
    """
    kept = _identity(overrides)
    parts = []
    for override in kept:
        key, _, value = override.lstrip("+~").partition("=")
        parts.append(re.sub(r"[^A-Za-z0-9._=-]+", "_", f"{key.rsplit('.', 1)[-1]}={value.strip(_BRACKETS)}").strip("_"))
    short = "-".join(parts)[: LONGEST - 7].strip("._-") or "job"
    return f"{short}-{_digest(kept, 6)}"
