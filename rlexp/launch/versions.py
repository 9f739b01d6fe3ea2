"""What a run was made with: versions of the packages, and the commit of the code."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("rlexp", "torch", "transformers", "datasets", "peft", "hydra-core", "numpy")
GIT_SECONDS = 5.0


def versions() -> dict[str, str]:
    """Package -> version, of those installed; reads metadata only and imports none of them."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """Commit of the checkout rlexp runs from (else of the working folder), with `+changes` when it is not clean; None without git."""
    for folder in (Path(__file__).resolve().parent, Path.cwd()):
        commit = _git(folder, "rev-parse", "HEAD")
        if commit:
            return commit + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    return None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
