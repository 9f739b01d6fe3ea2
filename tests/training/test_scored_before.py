"""What is forwarded before the first step of a batch, and whether there is a reference: no more than the objective needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs_here import config_of, model_folder, trained

from rlexp.config.correction import CorrectionConfig
from rlexp.training import trainer as trainer_module
from rlexp.training.trainer import Trainer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3."""
    return model_folder(tmp_path_factory.mktemp("model") / "small")


CASES: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"algorithm__num_iterations": 2}, set()),  # later passes read what the first one recorded
    ({"trainer__steps_per_batch": 2}, {"old"}),
    ({"trainer__steps_per_batch": 3, "algorithm__num_iterations": 2}, {"old"}),
    ({"correction": CorrectionConfig("token_truncate")}, {"old"}),
    ({"algorithm__beta": 0.1}, {"reference"}),
    ({"algorithm__beta": 0.1, "algorithm__kl_in": "reward"}, {"old", "reference"}),
    ({"loss__top_entropy_quantile": 0.5}, {"entropy"}),
    ({"loss__entropy_coef": 0.1}, set()),
    ({"loss": "kl_cov"}, {"old"}),
    ({"algorithm": "rloo"}, {"old", "reference"}),
    ({"algorithm": "rloo", "algorithm__beta": 0.0}, set()),
    ({"algorithm": "reinforce_pp", "algorithm__beta": 0.1}, {"old", "reference"}),
]


@pytest.mark.rows("GRPO-005", "GRPO-007", "GRPO-169", "RLOO-053")
@pytest.mark.parametrize(("options", "scored"), CASES, ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "")
def test_what_is_scored(options: dict[str, Any], scored: set[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []
    score = trainer_module.score
    monkeypatch.setattr(
        trainer_module,
        "score",
        lambda steps, terms, trainables, names, *rest, **more: (asked.append(set(names)), score(steps, terms, trainables, names, *rest, **more)),
    )
    companions: list[set[str]] = []

    def look(trainer: Trainer) -> None:
        companions.append(set(trainer.parts.trainables["policy"].companions))

    config = config_of(model, tmp_path, **options)
    trained(config, tmp_path, look)
    assert set(map(frozenset, asked)) == {frozenset(scored)}
    assert companions == [{"reference"} if config.algorithm.beta else set()]


@pytest.mark.rows("GRPO-002", "GRPO-003", "GRPO-006")
def test_the_first_pass_has_ratio_one_and_the_second_has_not(model: Path, tmp_path: Path) -> None:
    """One batch, two passes, a large step between them: the second pass is clipped, the first never."""
    options = {"algorithm__num_iterations": 2, "optimizer__learning_rate": 0.3, "loss__epsilon": 0.01}
    first, second = trained(config_of(model, tmp_path, **options), tmp_path).train()
    assert first["clip_ratio/region_mean"] == 0.0 and second["clip_ratio/region_mean"] > 0.1
    assert first["num_tokens"] == second["num_tokens"], "nothing new was sampled"
