"""Presets of papers: each composes, says where it is from, sets what the paper sets, and gives way to the experiment and the command line."""

from __future__ import annotations

from typing import Any

import pytest
from programs import Programs
from run_configs import composed
from small_runs import Cli

from rlexp.config.names import run_name
from rlexp.registry import conf_dir

NAMES = sorted(path.stem for path in (conf_dir() / "preset").glob("*.yaml"))
SETTINGS: dict[str, dict[str, Any]] = {
    "none": {"loss.name": "dapo", "algorithm.name": "grpo", "correction.name": "auto"},
    "gspo": {
        "loss.name": "grpo",
        "loss.importance_sampling_level": "sequence",
        "loss.epsilon": 3e-4,
        "loss.epsilon_high": 4e-4,
        "algorithm.beta": 0.0,
        "trainer.steps_per_batch": 4,
    },
    "dapo": {"loss.name": "dapo", "loss.epsilon": 0.2, "loss.epsilon_high": 0.28, "loss.mask_truncated_completions": True, "rollout.refill": True},
    "dr_grpo": {"loss.name": "dr_grpo", "algorithm.scale_rewards": "none"},
    "scalerl": {"loss.name": "cispo", "loss.epsilon_high": 5.0, "algorithm.scale_rewards": "batch"},
    "lite_ppo": {"loss.name": "dapo", "algorithm.scale_rewards": "batch"},
    "luspo": {"loss.name": "luspo", "loss.importance_sampling_level": "sequence", "loss.epsilon": 2e-3, "loss.epsilon_high": 2.5e-3},
    "sapo": {"loss.name": "sapo", "loss.sapo_temperature_pos": 1.0, "loss.sapo_temperature_neg": 1.05},
    "vespo": {
        "loss.name": "vespo",
        "loss.vespo_k_pos": 2.0,
        "loss.vespo_lambda_pos": 3.0,
        "loss.vespo_k_neg": 3.0,
        "loss.vespo_lambda_neg": 2.0,
        "correction.name": "token_truncate",
    },
    "entropy_80_20": {"loss.name": "dapo", "loss.top_entropy_quantile": 0.2},
    "intellect2": {"loss.delta": 4.0, "algorithm.beta": 0.001},
    "deepseek_v3_2": {"loss.off_policy_mask_threshold": 0.5, "algorithm.beta": 0.001, "algorithm.use_bias_correction_kl": True},
    "tis": {"correction.name": "token_truncate", "correction.clip_min": None, "correction.clip_max": 2.0},
    "mis_icepop": {"correction.name": "token_mask", "correction.clip_min": 0.5, "correction.clip_max": 2.0},
    "r1": {"loss.epsilon": 10.0, "algorithm.beta": 0.001, "trainer.steps_per_batch": 16},
    "gmpo": {"loss.name": "gmpo"},
    "gdpo": {"algorithm.multi_objective_aggregation": "normalize_then_sum"},
    "skywork": {"loss.use_adaptive_entropy": True},
}


def test_every_preset_is_here():
    assert set(SETTINGS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_what_its_paper_says(name):
    config = composed("experiment=none", f"preset={name}")
    assert config.run.preset == name
    for key, value in SETTINGS[name].items():
        section, _, field = key.partition(".")
        assert getattr(getattr(config, section), field) == value, key
    assert composed("experiment=addition", f"preset={name}").run.experiment == "addition"
    lines = (conf_dir() / "preset" / f"{name}.yaml").read_text().splitlines()
    assert lines[:2] == ["# @package _global_", f"# python -m rlexp.train preset={name}"]
    assert name == "none" or "arXiv" in lines[2] or "https://" in lines[2]


def test_the_command_line_wins_and_the_experiment_too():
    assert composed("preset=dapo", "loss.epsilon_high=0.3", "rollout.refill=false").loss.epsilon_high == 0.3
    assert composed("preset=scalerl", "loss=sapo").loss.name == "sapo" and composed("preset=scalerl", "loss=sapo").algorithm.scale_rewards == "batch"
    assert composed("preset=tis", "algorithm=rloo", "correction=none").loss.name == "rloo"
    assert composed("preset=gspo", "algorithm=rloo", "loss=grpo").algorithm.name == "rloo"
    assert composed("experiment=gsm8k", "preset=gspo").trainer.steps_per_batch == 2, "of the experiment"
    assert run_name(composed("preset=lite_ppo")) == "addition-lite_ppo-grpo-dapo-tiny-s42"


@pytest.mark.parametrize("name", ["dapo", "r1", "gdpo"])
def test_a_preset_trains(name, programs: Programs, tmp_path):
    done = Cli(programs, tmp_path).train(f"preset={name}", "trainer.max_steps=2", "rollout.prompts_per_batch=4", "trainer.steps_per_batch=2")
    assert done.code == 0, done.err[-2000:]
