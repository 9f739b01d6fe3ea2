"""Presets of papers: each composes, says where it is from, sets what the paper sets, and gives way to the experiment and the command line."""

from __future__ import annotations

from typing import Any

import pytest
from programs import Programs
from run_configs import composed, default_with
from small_runs import Cli

from rlexp.config.names import run_name
from rlexp.config.validate import problems
from rlexp.registry import ALGORITHMS, LOSSES, conf_dir

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
    "dr_grpo": {"loss.name": "dr_grpo", "loss.reduction": "rollout_constant", "algorithm.scale_rewards": "none"},
    "scalerl": {"loss.name": "cispo", "loss.epsilon_high": 5.0, "algorithm.scale_rewards": "batch", "model.cast_lm_head_to_fp32": True},
    "lite_ppo": {"loss.name": "dapo", "algorithm.scale_rewards": "batch"},
    "luspo": {"loss.name": "luspo", "loss.importance_sampling_level": "sequence", "loss.epsilon": 2e-3, "loss.epsilon_high": 2.5e-3},
    "sapo": {"loss.name": "sapo", "loss.sapo_temperature_pos": 1.0, "loss.sapo_temperature_neg": 1.05, "trainer.steps_per_batch": 4},
    "vespo": {
        "loss.name": "vespo",
        "loss.vespo_k_pos": 2.0,
        "loss.vespo_lambda_pos": 3.0,
        "loss.vespo_k_neg": 3.0,
        "loss.vespo_lambda_neg": 2.0,
        "correction.name": "token_truncate",
    },
    "entropy_80_20": {"loss.name": "dapo", "loss.top_entropy_quantile": 0.2},
    "intellect2": {"loss.name": "dapo", "loss.delta": 4.0, "algorithm.beta": 0.001},
    "deepseek_v3_2": {"loss.name": "grpo", "loss.off_policy_mask_threshold": 0.5, "algorithm.beta": 0.001, "algorithm.use_bias_correction_kl": True},
    "tis": {"correction.name": "token_truncate", "correction.clip_min": None, "correction.clip_max": 2.0},
    "mis_icepop": {"correction.name": "token_mask", "correction.clip_min": 0.5, "correction.clip_max": 2.0},
    "r1": {"loss.name": "grpo", "loss.epsilon": 10.0, "loss.epsilon_high": None, "algorithm.beta": 0.001, "trainer.steps_per_batch": 16},
    "gmpo": {"loss.name": "gmpo", "loss.log_epsilon": 0.4, "loss.log_epsilon_high": None, "loss.reduction": "rollout_mean"},
    "gdpo": {"algorithm.multi_objective_aggregation": "normalize_then_sum"},
    "skywork": {"loss.name": "dapo", "loss.use_adaptive_entropy": True},
}
PAPERS = {
    "gspo": "2507.18071",
    "dapo": "2503.14476",
    "dr_grpo": "2503.20783",
    "scalerl": "2510.13786",
    "lite_ppo": "2508.08221",
    "luspo": "2602.05261",
    "sapo": "2511.20347",
    "vespo": "2602.10693",
    "entropy_80_20": "2506.01939",
    "intellect2": "2505.07291",
    "deepseek_v3_2": "2512.02556",
    "tis": "fengyao.notion.site/off-policy-rl",
    "mis_icepop": "2510.18855",
    "r1": "2501.12948",
    "gmpo": "2507.20673",
    "gdpo": "2601.05242",
    "skywork": "2505.22312",
}
"""what each header names"""


def test_every_preset_is_here():
    assert set(SETTINGS) == set(NAMES) == {"none", *PAPERS}


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
    assert PAPERS.get(name, "") in lines[2]
    assert problems(config) == []


def test_the_length_penalty_of_dapo_is_a_reward():
    config = composed("preset=dapo", "reward=[exact_match,overlong]", "reward.terms.overlong.buffer=4")
    assert list(config.reward.terms) == ["exact_match", "overlong"] and problems(config) == []


def test_every_loss_goes_with_every_algorithm():
    """As a sweep over both groups makes them: what does not fit together would be refused by a rule."""
    for algorithm in ALGORITHMS.names():
        for loss in LOSSES.names():
            if all(each.entry(name).origin.startswith("rlexp.") for each, name in ((ALGORITHMS, algorithm), (LOSSES, loss))):
                config = default_with(algorithm=ALGORITHMS.config_for(algorithm)(), loss=LOSSES.config_for(loss)())
                assert problems(config) == [], (algorithm, loss)


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
