"""Group correction: what auto stands for, what the plan says, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from run_configs import composed, default_with

from rlexp.config.correction import CorrectionConfig
from rlexp.config.derived import correction_mode, correction_text
from rlexp.config.run import RunConfig
from rlexp.config.validate import problems

VLLM = {"generation__name": "vllm"}


def corrected(name: str = "auto", loss: str = "dapo", algorithm: str = "grpo", values: dict[str, Any] | None = None, **settings: Any) -> RunConfig:
    config = default_with(**(values or {}))
    config.loss, config.algorithm = composed("experiment=none", f"loss={loss}").loss, composed("experiment=none", f"algorithm={algorithm}").algorithm
    config.correction = CorrectionConfig(name, **settings)
    return config


@pytest.mark.rows("GRPO-051", "GRPO-052", "GRPO-056")
def test_what_auto_stands_for():
    assert correction_mode(corrected()) == "none", "the shipped samplers run the trainer's own weights"
    assert correction_mode(corrected(values=VLLM)) == "sequence_mask"
    assert correction_mode(corrected(values=VLLM, loss="vespo")) == "token_truncate"
    assert correction_mode(corrected(values=VLLM, loss="rloo", algorithm="rloo")) == "none"
    assert correction_mode(corrected(values=VLLM, loss="dppo")) == "none"
    assert correction_mode(corrected("none", values=VLLM)) == "none"
    assert correction_mode(corrected("token_mask")) == "token_mask"


def test_the_plan_says_what_is_done():
    assert correction_text(corrected()) == "none (auto)"
    assert correction_text(corrected("none")) == "none"
    assert correction_text(corrected(values=VLLM)) == "sequence_mask (auto), weights from none to 3"
    assert (
        correction_text(corrected("sequence_truncate", clip_min=0.5, clip_max=None, normalize=True))
        == "sequence_truncate, weights from 0.5 to none, geometric mean"
    )


@pytest.mark.parametrize("name", ["auto", "none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_every_option_composes(name):
    config = composed("experiment=none", f"correction={name}").correction
    assert config == CorrectionConfig(name) and (config.clip_min, config.clip_max) == (None, 3.0)


@pytest.mark.rows("GRPO-061", "GRPO-062", "GRPO-063", "GRPO-261", "GRPO-263", "GRPO-265")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: corrected("token_mask", clip_min=3.0), "correction.clip_min=3 must be below correction.clip_max=3"),
        (lambda: corrected("token_truncate", clip_max=None), "correction=token_truncate has no bound to clamp to"),
        (lambda: corrected("sequence_mask", loss="vespo"), "correction=sequence_mask does not go with loss=vespo"),
        (lambda: corrected("token_mask", loss="dppo"), "correction=token_mask does not go with loss=dppo, whose ratio is to the sampler already"),
        (lambda: corrected("token_mask", normalize=True), "correction.normalize=true is for the sequence modes, and the correction is token_mask"),
        (lambda: corrected(normalize=True), "correction.normalize=true is for the sequence modes, and the correction is none"),
        (lambda: corrected("token_mask", values={"generation__repetition_penalty": 1.1}), "generation.repetition_penalty=1.1 changes the sampler's log-probs"),
        (lambda: corrected(values={**VLLM, "generation__top_p": 0.9}), "needs generation.top_k > 0"),
        (lambda: corrected(values={**VLLM, "generation__min_p": 0.1}), "needs generation.top_k > 0"),
    ],
)
def test_what_is_refused(config, message):
    (problem,) = problems(config())
    assert message in problem and not problem.endswith(" ")


def test_what_is_allowed():
    assert problems(corrected("token_mask", clip_max=None)) == []
    assert problems(corrected("token_truncate", clip_min=0.5, clip_max=None)) == []
    assert problems(corrected("token_mask", loss="vespo")) == []
    assert problems(corrected(values={**VLLM, "generation__top_p": 0.9, "generation__top_k": 512})) == []
    assert problems(corrected("none", values={**VLLM, "generation__repetition_penalty": 1.1})) == []


@pytest.mark.rows("GRPO-261")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("loss__top_entropy_quantile", -0.1),
        ("loss__top_entropy_quantile", 1.1),
        ("loss__off_policy_mask_threshold", 0.0),
        ("loss__entropy_coef_delta", -0.1),
        ("correction__clip_max", 0.0),
        ("correction__clip_min", -1.0),
        ("correction__name", "token"),
    ],
)
def test_bounds(key, value):
    (problem,) = problems(default_with(**{key: value}))
    assert problem.startswith(f"{key.replace('__', '.')}={value} is out of range")


@pytest.mark.rows("GRPO-071", "GRPO-072")
def test_the_bounds_of_the_entropy_coefficient_must_be_in_order():
    assert problems(default_with(loss__entropy_coef_min=2.0)) == ["loss.entropy_coef_min=2 is above loss.entropy_coef_max=1: exchange them"]
