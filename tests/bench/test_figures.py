"""Medians, ratios, goals, and the share of the machine's limit, by hand numbers and by torch's own count of FLOPs."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from scripts.bench.figures import Work, as_dict, figure, figures, mean_length, same_gradient, share_of_limit, tokens, void
from scripts.bench.workloads import Workload


def test_times_count_as_theirs_over_ours() -> None:
    found = figure("update", [1.0, 2.0, 4.0], [6.0, 6.0, 8.0], 3.5)
    assert (found.ours, found.theirs, found.ratio, found.low, found.high) == (2.0, 6.0, 3.0, 2.0, 6.0)
    assert found.verdict == "below"
    assert figure("update", [2.0], [7.0], 3.5).verdict == "ok"


def test_memory_counts_as_ours_over_theirs() -> None:
    found = figure("memory", [30.0, 50.0, 40.0], [100.0, 50.0, 80.0], 0.5)
    assert (found.ratio, found.low, found.high, found.verdict) == (0.5, 0.3, 1.0, "ok")
    assert figure("memory", [41.0], [80.0], 0.5).verdict == "below"


def test_without_a_goal_there_is_no_verdict() -> None:
    record = {"update": 1.0, "generation": 2.0, "step": 3.0, "memory": 100}
    found = figures([record], [record], {"step": 1.5})
    assert [(one["key"], one["verdict"]) for one in as_dict(found)] == [("update", "-"), ("generation", "-"), ("step", "below"), ("memory", "-")]


def test_a_run_against_itself_is_void_outside_of_five_percent() -> None:
    ours, other = {"update": 1.0, "generation": 1.0, "step": 1.0, "memory": 100}, {"update": 1.06, "generation": 1.04, "step": 0.96, "memory": 106}
    assert void(figures([ours], [other], {})) == ["update", "peak memory"]


def test_gradients_are_the_same_or_not() -> None:
    assert same_gradient({"cosine": 0.9999999, "norm_ratio": 1.0001}, cuda=False)
    assert not same_gradient({"cosine": 0.99999, "norm_ratio": 1.0}, cuda=False)
    assert not same_gradient({"cosine": 1.0, "norm_ratio": 1.02}, cuda=True)
    assert same_gradient({"cosine": 0.9995, "norm_ratio": 1.0}, cuda=True)


def test_counts(small: Workload) -> None:
    records = [{"generated": count, "forwarded": 2 * count, "trained": 7} for count in (10, 30, 80)]
    assert tokens(records) == {"generated": 30, "forwarded": 60, "trained": 7}
    assert mean_length(records, small) == 40 / 8


def test_flops_by_hand() -> None:
    work = Work(non_embedding=10, layers=2, attention_width=3, hidden=4, vocabulary=5, forwarded=7, trained=6, pairs=8)
    assert work.flops == 6 * 10 * 7 + 6 * 4 * 5 * 6 + 12 * 2 * 3 * 8


def test_flops_are_those_of_a_forward_and_backward() -> None:
    """torch counts the products of a dense causal model; its eager attention computes all T x T pairs."""
    config = Qwen3Config(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, head_dim=8,
        tie_word_embeddings=False, attn_implementation="eager",
    )  # fmt: skip
    module = Qwen3ForCausalLM(config)
    length = 24
    with FlopCounterMode(display=False) as counter:
        module(input_ids=torch.arange(length)[None]).logits.sum().backward()
    matrices = sum(parameter.numel() for name, parameter in module.named_parameters() if parameter.dim() == 2 and "embed" not in name and "lm_head" not in name)
    work = Work(matrices, layers=3, attention_width=32, hidden=32, vocabulary=96, forwarded=length, trained=length, pairs=length * length)
    assert counter.get_total_flops() == pytest.approx(work.flops, rel=0.01)


def test_share_of_the_limit() -> None:
    about = {"non_embedding": 10, "layers": 2, "attention_width": 3, "hidden": 4, "vocabulary": 5}
    record = {"forwarded": 7, "trained": 6, "pairs": 8}
    records = [{**record, "update": seconds} for seconds in (1.0, 2.0, 9.0)]
    assert share_of_limit(about, records, rate=3444.0) == pytest.approx(1716 / 2.0 / 3444.0)
