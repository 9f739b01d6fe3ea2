"""The end of a run: the final model and the summary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlexp.config.run import RunConfig
from rlexp.models.loaded import LoadedModel
from rlexp.models.save import save_policy
from rlexp.training.disk import full_disk_explained
from rlexp.training.trainer import Trainer


def summary_of(trainer: Trainer, status: str) -> dict[str, Any]:
    """What summary.json holds: status, steps, seconds, token counters and the evaluations at start, end and best."""
    progress = trainer.progress
    best = progress.best[0] if progress.best else None
    return {
        "status": status,
        "steps": progress.step,
        "total_steps": trainer.parts.total_steps,
        "seconds": round(progress.seconds, 3),
        "tokens": progress.tokens,
        "evaluation": progress.evaluation,
        "best_checkpoint": None if best is None else {"step": int(best[1]), trainer.config.checkpoint.metric: best[0]},
    }


def save_models(config: RunConfig, trainer: Trainer, loaded: LoadedModel, folder: Path) -> None:
    """The final policy in Hugging Face format: model/, or model/<policy>/ when several are trained. Rank 0 writes; every rank calls it."""
    first, sharded = trainer.parts.collectives.rank == 0, trainer.parts.runner.strategy.sharded
    if not first and not sharded:
        return
    policies = list(dict.fromkeys(trainer.parts.algorithm.agents.values()))
    for policy in policies:
        module = trainer.parts.trainables[policy].network.module
        target = model_folder(folder, policy, policies)
        with full_disk_explained("the final model", folder, ""):
            save_policy(LoadedModel(module, loaded.tokenizer, loaded.eos_ids, loaded.context, loaded.label), config.peft, target, writes=first)


def model_folder(folder: Path, policy: str, policies: Sequence[str]) -> Path:
    """Where a run folder holds the final weights of a policy: model/, or model/<policy>/ when several are trained."""
    return folder / "model" if len(policies) == 1 else folder / "model" / policy
