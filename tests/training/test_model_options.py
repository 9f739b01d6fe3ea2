"""Options of the model through whole small runs: mixtures of experts, a float32 head, and what is refused once the model is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from models_for_tests import tiny_model
from runs_here import config_of, model_folder, trained

from rlexp.config.errors import UserError
from rlexp.config.model import LoraConfig
from rlexp.models.float32_head import Float32Head
from rlexp.training.trainer import Trainer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dense model, one with a tied head, and a mixture of experts."""
    root = tmp_path_factory.mktemp("models")
    tied = tiny_model(hidden=16, layers=1, tied=True)
    tied.module.save_pretrained(root / "tied")
    tied.tokenizer.save_pretrained(root / "tied")
    return {"dense": model_folder(root / "dense"), "mixture": model_folder(root / "mixture", kind="mixtral"), "tied": root / "tied"}


@pytest.mark.rows("GRPO-266", "GRPO-267", "RLOO-084")
@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("dense", {"loss__router_aux_loss_coef": 0.01}, r"^loss.router_aux_loss_coef=0.01 is for mixture-of-experts models"),
        ("dense", {"algorithm": "rloo", "loss__router_aux_loss_coef": 0.01}, r"^loss.router_aux_loss_coef=0.01 is for mixture-of-experts models"),
        ("tied", {"model__cast_lm_head_to_fp32": True}, r"^model.cast_lm_head_to_fp32=true needs a head of its own.*set model.cast_lm_head_to_fp32=false"),
    ],
)
def test_what_the_model_does_not_allow(kind: str, options: dict[str, Any], message: str, folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        trained(config_of(folders[kind], tmp_path, **options), tmp_path)


@pytest.mark.rows("GRPO-047", "RLOO-022")
@pytest.mark.parametrize(
    "options",
    [
        {"algorithm__beta": 0.1, "trainer__gradient_checkpointing": True},
        {"algorithm": "rloo", "algorithm__num_iterations": 2},
        {"peft": LoraConfig(r=2), "algorithm__beta": 0.1, "trainer__tokens_per_microbatch": 20},
        {"generation__temperature": 0.7, "trainer__steps_per_batch": 2},
    ],
    ids=["checkpointing", "rloo", "lora", "steps"],
)
def test_mixtures_train(options: dict[str, Any], folders: dict[str, Path], tmp_path: Path) -> None:
    lines = trained(config_of(folders["mixture"], tmp_path, dtype="float32", **options), tmp_path).train()
    assert all(line["grad_norm"] > 0 and 1.5 < line["aux_loss"] < 4 for line in lines), "two of four experts each: 2 when the load is even"
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-4 for line in lines[:1])


@pytest.mark.rows("GRPO-047")
def test_the_load_becomes_more_even(folders: dict[str, Path], tmp_path: Path) -> None:
    """A large weight and nothing else to learn."""
    options = {
        "loss__router_aux_loss_coef": 10.0,
        "loss__epsilon": 0.0,
        "optimizer__learning_rate": 0.02,
        "trainer__max_steps": 12,
        "optimizer__schedule": "constant",
    }
    lines = trained(config_of(folders["mixture"], tmp_path, dtype="float32", **options), tmp_path).train()
    assert lines[-1]["aux_loss"] < lines[0]["aux_loss"] - 0.02


@pytest.mark.rows("GRPO-103")
@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"dtype": "float32", "trainer__precision": "bf16"}])
def test_a_float32_head_trains_and_samples(options: dict[str, Any], folders: dict[str, Path], tmp_path: Path) -> None:
    heads = []

    def look(trainer: Trainer) -> None:
        trainable = trainer.parts.trainables["policy"]
        heads.extend(network.causal.get_output_embeddings() for network in (trainable.network, trainable.companions["reference"].network))

    config = config_of(folders["dense"], tmp_path, model__cast_lm_head_to_fp32=True, algorithm__beta=0.1, trainer__max_steps=3, **options)
    first, *_, last = trained(config, tmp_path, look).train()
    assert [type(head) for head in heads] == [Float32Head] * 2 and all(head.weight.dtype == torch.float32 for head in heads)
    assert first["kl"] == 0.0 and last["kl"] != 0.0
