"""The reference of a policy that is an adapter, and weights that keep their dtype."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

LORA = ["peft=lora", "peft.r=4", "algorithm.beta=0.1", "algorithm.num_generations=4", "optimizer.learning_rate=0.5", "checkpoint.steps=1"]
DIGITS = "def score(completion_ids):\n    return [float(i % 2) for i, _ in enumerate(completion_ids)]\n"


def kls(run) -> list[float]:
    """The metric of each step."""
    return [line["kl"] for line in run.lines()]


@pytest.fixture
def lora(case, model_folder):
    """A run with an adapter on a small model."""
    case.tasks({"prompt": "12+34="}, {"prompt": "5+6="})
    case.rewards(DIGITS)

    def train(*overrides: str, steps: int, where: str, **options):
        return case.train(
            "model=hub", f"model.path={model_folder}", *LORA, f"trainer.max_steps={steps}", *overrides, generator="native", where=where, **options
        )

    return train


@pytest.mark.cases("S58")
@pytest.mark.rows("GRPO-169")
def test_the_reference_of_a_policy_that_starts_from_an_adapter(lora, tmp_path: Path) -> None:
    fresh = lora(steps=3, where="fresh")
    assert kls(fresh)[0] == 0.0 and all(value > 0 for value in kls(fresh)[1:])
    adapter = load_file(fresh.folder / "model" / "adapter_model.safetensors")
    assert all(value.abs().max() > 0 for name, value in adapter.items() if "lora_B" in name)

    path = f"peft.path={fresh.folder / 'model'}"
    whole = lora(path, "optimizer.learning_rate=0.2", steps=3, where="whole")
    assert kls(whole)[0] == 0.0 and all(value > 0 for value in kls(whole)[1:])
    assert whole.rollouts(1)["logprobs"] != fresh.rollouts(1)["logprobs"], "the first rollouts are the adapter's, not the base model's"

    for steps in (2, 3):  # the same run in two lives
        parts = lora(path, "optimizer.learning_rate=0.2", steps=steps, where="parts")
    assert kls(parts) == kls(whole)
    weights = whole.weights()
    assert all(torch.equal(value, weights[name]) for name, value in parts.weights().items())


@pytest.mark.cases("S58")
@pytest.mark.rows("GRPO-169")
def test_a_run_that_starts_from_a_checkpoint_has_it_as_reference(lora) -> None:
    before = lora(steps=2, where="before")
    start = f"run.start_from={before.folder / 'checkpoints' / 'latest'}"
    whole = lora(start, steps=3, where="whole")
    assert kls(whole)[0] == 0.0 and all(value > 0 for value in kls(whole)[1:])
    for steps in (2, 3):
        parts = lora(start, steps=steps, where="parts")
    assert kls(parts) == kls(whole)


@pytest.mark.rows("GRPO-187")
@pytest.mark.parametrize("generator", ["native", "transformers"])
def test_weights_keep_their_dtype(generator: str, case, model_folder) -> None:
    case.tasks({"prompt": "12+34="})
    case.rewards(DIGITS)
    overrides = ["model=hub", f"model.path={model_folder}", "model.dtype=bfloat16", "trainer.precision=bf16", "algorithm.num_generations=4"]
    run = case.train(*overrides, "trainer.max_steps=2", generator=generator)
    assert run.metrics(2)["grad_norm"] > 0
    for weights in (run.weights(), load_file(run.folder / "model" / "model.safetensors")):
        assert {value.dtype for value in weights.values()} == {torch.bfloat16}
