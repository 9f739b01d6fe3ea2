"""The defaults of GRPO's and RLOO's options as the requirement rows state them, with and without an algorithm of its own."""

from __future__ import annotations

from typing import Any

import pytest
from run_configs import composed

GRPO: dict[str, Any] = {
    "algorithm.num_generations": 8,
    "algorithm.num_iterations": 1,
    "algorithm.beta": 0.0,
    "algorithm.use_bias_correction_kl": True,
    "algorithm.scale_rewards": "group",
    "algorithm.multi_objective_aggregation": "sum_then_normalize",
    "algorithm.sync_ref_model": False,
    "algorithm.ref_model_mixup_alpha": 0.6,
    "algorithm.ref_model_sync_steps": 512,
    "loss.name": "dapo",
    "loss.epsilon": 0.2,
    "loss.epsilon_high": None,
    "loss.delta": None,
    "loss.importance_sampling_level": "token",
    "loss.mask_truncated_completions": False,
    "loss.router_aux_loss_coef": None,
    "loss.off_policy_mask_threshold": None,
    "loss.top_entropy_quantile": 1.0,
    "loss.entropy_coef": 0.0,
    "loss.use_adaptive_entropy": False,
    "loss.entropy_coef_min": 0.0,
    "loss.entropy_coef_max": 1.0,
    "loss.entropy_coef_delta": 0.005,
    "loss.entropy_target": 0.2,
    "correction.clip_max": 3.0,
    "correction.clip_min": None,
    "generation.temperature": 1.0,
    "generation.top_p": 1.0,
    "generation.top_k": 0,
    "generation.min_p": None,
    "generation.repetition_penalty": 1.0,
    "generation.generation_kwargs": None,
    "generation.chat_template_kwargs": None,
    "rollout.max_completion_length": 512,
    "data.shuffle": True,
    "model.dtype": "float32",
    "model.cast_lm_head_to_fp32": False,
    "optimizer.learning_rate": 1e-6,
    "optimizer.weight_decay": 0.0,
    "optimizer.max_grad_norm": 1.0,
    "peft.name": "none",
}
NOT_RLOO = ("algorithm.scale_rewards", "algorithm.multi_objective_aggregation", "loss.delta", "loss.importance_sampling_level")
RLOO: dict[str, Any] = {
    **{key: value for key, value in GRPO.items() if key not in NOT_RLOO},
    "algorithm.num_generations": 2,
    "algorithm.beta": 0.05,
    "algorithm.reward_clip_range": None,
    "algorithm.normalize_advantages": False,
    "algorithm.kl_in": "reward",
    "algorithm.kl_estimator": "k1",
    "loss.name": "rloo",
}


def value_of(config: Any, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


@pytest.mark.rows("GRPO-005", "GRPO-006", "GRPO-014", "GRPO-017", "GRPO-024", "GRPO-025", "GRPO-027", "GRPO-036", "GRPO-037", "GRPO-039", "GRPO-046")
@pytest.mark.rows(
    "GRPO-047", "GRPO-048", "GRPO-057", "GRPO-058", "GRPO-064", "GRPO-068...074", "GRPO-076...085", "GRPO-087", "GRPO-091", "GRPO-099", "GRPO-103"
)
@pytest.mark.rows("GRPO-170...172", "GRPO-277")
@pytest.mark.parametrize("key", GRPO)
def test_of_grpo(key: str) -> None:
    assert value_of(composed("experiment=none"), key) == GRPO[key]


@pytest.mark.rows("RLOO-008", "RLOO-010", "RLOO-011", "RLOO-017", "RLOO-020...022", "RLOO-025...031", "RLOO-033", "RLOO-035", "RLOO-039", "RLOO-043")
@pytest.mark.rows("RLOO-050...052", "RLOO-085")
@pytest.mark.parametrize("key", RLOO)
def test_of_rloo(key: str) -> None:
    assert value_of(composed("experiment=none", "algorithm=rloo"), key) == RLOO[key]


@pytest.mark.rows("RLOO-014", "RLOO-018", "RLOO-019", "RLOO-023")
@pytest.mark.parametrize("key", [*NOT_RLOO, "algorithm.token_level_kl"])
def test_what_rloo_has_not(key: str) -> None:
    section, _, name = key.partition(".")
    config = composed("experiment=none", "algorithm=rloo")
    assert not hasattr(getattr(config, section), name)


@pytest.mark.rows("GRPO-040...045", "GRPO-084", "RLOO-032")
def test_of_single_options() -> None:
    sapo, vespo = composed("experiment=none", "loss=sapo").loss, composed("experiment=none", "loss=vespo").loss
    assert (sapo.sapo_temperature_neg, sapo.sapo_temperature_pos) == (1.05, 1.0)
    assert (vespo.vespo_k_pos, vespo.vespo_lambda_pos, vespo.vespo_k_neg, vespo.vespo_lambda_neg) == (2.0, 3.0, 3.0, 2.0)
    assert composed("experiment=none", "generation=transformers").generation.cache_implementation is None
