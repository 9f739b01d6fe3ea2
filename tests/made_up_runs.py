"""Run folders as runs leave them, with numbers made up here."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from run_configs import composed

from rlexp.config.saved import save_config
from rlexp.launch.folder import RunFolder
from rlexp.records.rollout import Rollout
from rlexp.records.turn import EOS, LENGTH, Turn
from rlexp.tracking.jsonl import JsonlLog
from rlexp.tracking.rollouts import write_rollouts


def made_up_rollouts(step: int, count: int = 24) -> list[Rollout]:
    """Additions, the more of them right the later the step; the first completion is hostile to HTML."""
    rollouts = []
    for number in range(count):
        a, b = 10 + number // 4, 20 + step % 7
        right = number % 4 < step // 20 + 1
        text = str(a + b if right else a * 3) if number else '<script>alert("x")</script> & http://evil.example/'
        ids = np.arange(len(text), dtype=np.int64)
        turn = Turn(np.array([1, 2, 3]), ids, -0.5 * np.ones(len(text), np.float32), LENGTH if number == 3 else EOS, version=step - 1)
        rollouts.append(
            Rollout(
                {"prompt": f"{a}+{b}=", "answer": str(a + b)},
                (0, number // 4, "policy"),
                number % 4,
                turns=[turn],
                prompt_text=f"user: {a}+{b}=\nassistant: ",
                completion_text=text,
            )
        )
        rollouts[-1].reward = float(right and number > 0)
        rollouts[-1].rewards = {"exact_match": rollouts[-1].reward, "think_format": None}
        rollouts[-1].advantage = 1.2 * rollouts[-1].reward - 0.4
    return rollouts


def write_run(folder: Path, steps: int = 80, seed: int = 1, status: str = "finished", **extra: object) -> Path:
    """A run folder below `folder` parent with metrics, evaluations, rollouts, status and summary."""
    rng = np.random.Generator(np.random.Philox(seed))
    folder.mkdir(parents=True)
    overrides = [f"run.seed={seed}", f"trainer.max_steps={steps}"]
    save_config(composed(*overrides, f"run.name={folder.name}"), folder / "config.yaml")
    (folder / "overrides.txt").write_text("".join(f"{line}\n" for line in overrides))
    log = JsonlLog(folder / "metrics.jsonl")
    accuracy = [(step, 0.34 + 0.6 * (1 - math.exp(-step / 30))) for step in range(0, steps + 1, 20)]
    for step in range(steps + 1):
        gained = 1 - math.exp(-step / 30)
        if step:
            noise = float(rng.normal(0, 0.04))
            metrics = {"loss": 0.01 * noise, "grad_norm": 0.4 + abs(noise), "entropy": 1.1 - 0.8 * gained + noise / 3, "reward": 0.35 + 0.55 * gained + noise}
            metrics |= {
                "reward_std": 0.45 - 0.3 * gained,
                "rewards/exact_match/mean": metrics["reward"],
                "rewards/exact_match/std": 0.4,
                "frac_reward_zero_std": 0.2 + 0.5 * gained,
            }
            metrics |= {
                "completions/mean_length": 3.2 + noise,
                "completions/min_length": 2.0,
                "completions/max_length": 8.0,
                "completions/clipped_ratio": 0.1 * (1 - gained),
            }
            metrics |= {
                "clip_ratio/region_mean": 0.0,
                "clip_ratio/low_mean": 0.0,
                "clip_ratio/high_mean": 0.0,
                "learning_rate": 5e-4,
                "kl": float("nan"),
                "num_tokens": 1500.0 * step,
            }
            metrics |= {
                "perf/generation_s": 0.31,
                "perf/reward_s": 0.01,
                "perf/score_s": 0.002,
                "perf/update_s": 0.42,
                "perf/tokens_per_s": 700 + 50 * noise,
                "step_time": 0.75,
                "epoch": step / 125,
            }
            log.log(step, "train", metrics, 0.75 * step)
        if step % 20 == 0:
            log.log(step, "eval", {"accuracy": dict(accuracy)[step], "reward": dict(accuracy)[step], "perf/evaluation_s": 0.9}, 0.75 * step)
        if step in (1, steps):
            write_rollouts(folder, step, "train", made_up_rollouts(step))
    log.close()
    run = RunFolder(folder)
    facts = {
        "host": "somewhere",
        "pid": 1,
        "processes": 1,
        "threads": 2,
        "versions": {"python": "3.11.7", "rlexp": "0.1.0", "torch": "2.13.0"},
        "git_commit": "0123abc",
    }
    run.write_status(status, **{**facts, **extra})
    run.write_status(first_started="2026-01-02T03:04:05+00:00", ended="2026-01-02T03:05:06+00:00")
    kept = {when: {"accuracy": accuracy[place][1], "step": accuracy[place][0]} for when, place in (("start", 0), ("end", -1), ("best", -1))}
    summary = {"status": status, "steps": steps, "seconds": 61.4, "tokens": {"generated": 128000, "forwarded": 420000, "trained": 120000}, "evaluation": kept}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder
