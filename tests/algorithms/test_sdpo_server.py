"""algorithm.use_teacher_server: the generator that holds the policy's weights says what a live teacher in the process would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from run_configs import default_with
from runs_here import config_of, model_folder, trained
from scoring import ScoringGenerationConfig, ScoringGenerator

from rlexp.config.errors import UserError
from rlexp.config.sdpo import SDPOConfig
from rlexp.config.validate import problems
from rlexp.training.trainer import Trainer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3."""
    return model_folder(tmp_path_factory.mktemp("model") / "small")


def run(model: Path, folder: Path, server: bool, **options: Any) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """Weights after two steps, and the lines."""
    kept: list[Trainer] = []
    values = {f"algorithm__{name}": value for name, value in {"teacher_model_kind": "live", "use_teacher_server": server, **options}.items()}
    config = config_of(model, folder, algorithm="sdpo", generation=ScoringGenerationConfig(), **values)
    lines = trained(config, folder, kept.append).train()
    policy = kept[0].parts.trainables["policy"]
    assert not (server and policy.companions), "no teacher in the process"
    return {name: value.clone() for name, value in policy.network.state_dict().items()}, lines


MODES: list[dict[str, Any]] = [
    {},
    {"distillation_mode": "topk_logits", "distillation_topk": 5},
    {"distillation_mode": "topk_logits", "distillation_topk": 5, "distillation_add_tail": True, "distillation_alpha": 0.3},
]


@pytest.mark.rows("SDPO-089", "SDPO-091", "SDPO-092", "SDPO-098", "SDPO-117")
@pytest.mark.parametrize("mode", MODES, ids=["sampled_token", "topk", "topk-tail"])
def test_it_equals_the_live_teacher(mode: dict[str, Any], model: Path, tmp_path: Path) -> None:
    """With the teacher's support on both sides. The server's numbers are float32."""
    support = {"distillation_support": "teacher"} if mode else {}
    served, lines = run(model, tmp_path / "server", True, **mode)
    local, others = run(model, tmp_path / "local", False, **mode, **support)
    assert max(float((value - local[name]).abs().max()) for name, value in served.items()) < 1e-4
    taught = [(line, other) for line, other in zip(lines, others, strict=True) if "self_distillation/server_logprob_abs_diff" in line]
    assert taught
    for line, other in taught:
        assert line["self_distillation/distillation_loss"] == pytest.approx(other["self_distillation/distillation_loss"], abs=1e-4)
        assert line["self_distillation/server_logprob_abs_diff"] > 0, "the teacher's prompt is another one"


@pytest.mark.rows("SDPO-092")
def test_a_missing_number_stops_the_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScoringGenerator, "broken", True)
    with pytest.raises(UserError, match="gave no log-prob for a token of the teacher"):
        run(model, tmp_path, True)


GOOD: dict[str, Any] = {"use_teacher_server": True, "teacher_model_kind": "live"}
BAD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"teacher_model_kind": "ema"}, {}, "needs algorithm.teacher_model_kind=live, not ema"),
    ({"distillation_weight": 0.5}, {}, "needs algorithm.distillation_weight=1, not 0.5"),
    ({"distillation_mode": "full_logits"}, {}, "needs algorithm.distillation_mode=sampled_token or topk_logits"),
    ({"num_iterations": 2}, {}, "needs trainer.steps_per_batch=1 and algorithm.num_iterations=1"),
    ({}, {"generation__temperature": 0.7}, "needs generation.temperature=1"),
    ({}, {"trainer__steps_per_batch": 2}, "needs trainer.steps_per_batch=1"),
]


@pytest.mark.rows("SDPO-090", "SDPO-111")
@pytest.mark.parametrize(("options", "others", "text"), BAD, ids=lambda value: str(value) if isinstance(value, dict) and value else "")
def test_each_condition_is_named(options: dict[str, Any], others: dict[str, Any], text: str) -> None:
    def found(algorithm: dict[str, Any], **values: Any) -> list[str]:
        return problems(default_with(**{"generation": ScoringGenerationConfig(), "algorithm": SDPOConfig(**algorithm), **values}))

    assert found(GOOD) == []
    (said,) = found({**GOOD, **options}, **others)
    assert said.startswith("algorithm.use_teacher_server=true") and text in said


@pytest.mark.rows("SDPO-111")
def test_the_generator_must_be_a_server() -> None:
    (said,) = problems(default_with(algorithm=SDPOConfig(**GOOD)))
    assert "needs generation=vllm_server, not native" in said
