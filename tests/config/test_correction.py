"""Group correction: what auto stands for, what the plan says, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from run_configs import composed, default_with

from rlexp.config.advice import warnings
from rlexp.config.correction import CorrectionConfig
from rlexp.config.derived import correction_mode, correction_text
from rlexp.config.generation import GenerationConfig, NativeGenerationConfig, TransformersGenerationConfig
from rlexp.config.run import RunConfig
from rlexp.config.validate import problems
from rlexp.registry import GENERATORS


@dataclass
class EngineConfig(GenerationConfig):
    """A generator with kernels of its own that returns a bounded number of candidates, as vLLM does."""

    own_numerics: ClassVar[bool] = True
    candidates: ClassVar[str] = "top_k"
    name: str = "engine"


@dataclass
class ServerConfig(EngineConfig):
    """Another one that returns log-probs only."""

    candidates: ClassVar[str] = "none"
    name: str = "server"


def engine(**options: Any) -> dict[str, Any]:
    return {"generation": EngineConfig(**options)}


def corrected(name: str = "auto", loss: str = "dapo", algorithm: str = "grpo", values: dict[str, Any] | None = None, **settings: Any) -> RunConfig:
    config = default_with(**(values or {}))
    config.loss, config.algorithm = composed("experiment=none", f"loss={loss}").loss, composed("experiment=none", f"algorithm={algorithm}").algorithm
    config.correction = CorrectionConfig(name, **settings)
    return config


@pytest.mark.rows("GRPO-051", "GRPO-052", "GRPO-056")
def test_what_auto_stands_for():
    assert correction_mode(corrected()) == "none", "the shipped samplers run the trainer's own weights"
    assert correction_mode(corrected(values=engine())) == "sequence_mask"
    assert correction_mode(corrected(values=engine(), loss="vespo")) == "token_truncate"
    assert correction_mode(corrected(values=engine(), loss="rloo", algorithm="rloo")) == "none"
    assert correction_mode(corrected(values=engine(), loss="dppo")) == "none"
    assert correction_mode(corrected("none", values=engine())) == "none"
    assert correction_mode(corrected("token_mask")) == "token_mask"


def test_the_plan_says_what_is_done():
    assert correction_text(corrected()) == "none (auto)"
    assert correction_text(corrected("none")) == "none"
    assert correction_text(corrected(values=engine())) == "sequence_mask (auto), weights from none to 3"
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
        (lambda: corrected(values=engine(top_p=0.9)), "generation.top_p=0.9 with correction=sequence_mask needs generation.top_k > 0"),
        (lambda: corrected(values=engine(min_p=0.1)), "generation.min_p=0.1 with correction=sequence_mask needs generation.top_k > 0"),
        (lambda: corrected(values=engine(generation_kwargs={"top_p": 0.9})), "generation.top_p=0.9 with correction=sequence_mask needs generation.top_k > 0"),
        (
            lambda: corrected(values=engine(generation_kwargs='{"repetition_penalty": 1.2}')),
            "generation.repetition_penalty=1.2 changes the sampler's log-probs",
        ),
    ],
)
def test_what_is_refused(config, message):
    (problem,) = problems(config())
    assert message in problem and not problem.endswith(" ")


def test_what_is_allowed():
    assert problems(corrected("token_mask", clip_max=None)) == []
    assert problems(corrected("token_truncate", clip_min=0.5, clip_max=None)) == []
    assert problems(corrected("token_mask", loss="vespo")) == []
    assert problems(corrected(values=engine(top_p=0.9, top_k=512))) == []
    assert problems(corrected("none", values=engine(repetition_penalty=1.1))) == []


@pytest.mark.rows("GRPO-060", "GRPO-265", "ASYNC-230")
def test_a_sampler_that_hides_its_candidates_is_warned_of():
    cut = {"top_p": 0.9, "top_k": 20, "min_p": 0.1}
    for name, value in cut.items():
        (warning,) = warnings(default_with(generation=ServerConfig(**{name: value})))
        assert warning.startswith(f"generation.{name}={value}: generation=server does not tell which tokens were left") and "biased" in warning
    assert warnings(default_with(generation=ServerConfig())) == []
    assert warnings(default_with(generation=ServerConfig(generation_kwargs={"min_p": 0.1})))
    (warning,) = warnings(default_with(generation=EngineConfig(top_p=0.9), correction=CorrectionConfig("none")))
    assert warning.startswith("generation.top_p=0.9: generation=engine does not tell"), "with a correction it is an error"
    assert warnings(default_with(generation=EngineConfig(top_p=0.9, top_k=512), correction=CorrectionConfig("none"))) == []
    for own in (EngineConfig(**cut), NativeGenerationConfig(**cut), TransformersGenerationConfig(**cut)):
        assert warnings(default_with(generation=own)) == []


def test_configs_say_what_generators_provide():
    for name in GENERATORS.names():
        entry = GENERATORS.entry(name)
        if entry.origin.startswith("rlexp."):
            assert (entry.config.candidates != "none") == ("candidates" in GENERATORS.load(name).provides), name


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
