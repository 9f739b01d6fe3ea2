"""generation=vllm_server against a small server without a model: what is checked before work, how requests travel, restarts, several ranks."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from models_for_tests import tiny_model
from rank_threads import ThreadCollectives, on_ranks
from server_fake import CONTEXT, FakeServer

from rlexp.config.errors import PeerError, UserError
from rlexp.config.vllm_server import VLLMServerGenerationConfig
from rlexp.generation.base import BadPrompt
from rlexp.generation.vllm_server import generator as server_generator
from rlexp.generation.vllm_server.client import ServerLost
from rlexp.generation.vllm_server.generator import VLLMServerGenerator
from rlexp.generation.vllm_server.wire import Aborted
from rlexp.generation.weight_sync.base import SyncError, TrainerSide
from rlexp.records.request import Request, Sampling
from rlexp.records.turn import EOS, LENGTH

STUB = Path(__file__).parents[1] / "server_stub"


@pytest.fixture
def fake():
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def made():
    """Generators made here are closed."""
    kept: list[VLLMServerGenerator] = []
    yield kept
    for generator in kept:
        generator.close()


def config(*servers: FakeServer, **options) -> VLLMServerGenerationConfig:
    return VLLMServerGenerationConfig(base_url=",".join(server.url for server in servers) or None, **{"timeout": 5.0, **options})


def generator(made: list, *servers: FakeServer, trainer: TrainerSide | None = None, dtype: torch.dtype = torch.float32, **options) -> VLLMServerGenerator:
    policies = {"policy": tiny_model(dtype=dtype)}
    made.append(VLLMServerGenerator(config(*servers, **options), policies=policies, trainer=trainer or TrainerSide(dtype)))
    return made[-1]


def request(*ids: int, key: int = 6, number: int = 0, tokens: int = 4, **sampling) -> Request:
    return Request(np.array(ids), key, tokens, Sampling(**sampling), order=(0, 0, number, 0))


def sampled(generator: VLLMServerGenerator, *requests: Request) -> list:
    async def ask():
        return await asyncio.gather(*(generator.sample(each) for each in requests))

    return asyncio.run(ask())


# before work


@pytest.mark.rows("GRPO-202", "GRPO-203", "GRPO-204", "GRPO-205")
def test_a_server_that_is_not_there_is_told_with_the_line_that_starts_one(made):
    began = time.monotonic()
    with pytest.raises(
        UserError, match=r"(?s)no vLLM server answered at http://127\.0\.0\.1:9 within generation\.timeout=0\.3 seconds.*generation\.launch=true.*VLLM_SERVER"
    ):
        generator(made, port=9, timeout=0.3)
    assert time.monotonic() - began < 5


@pytest.mark.rows("GRPO-201", "ASYNC-213", "ASYNC-214", "ASYNC-217", "ASYNC-222", "ASYNC-224", "ASYNC-229")
def test_every_flag_that_is_wrong_is_told_in_one_message(fake, made):
    fake.state.info["vllm_config"] |= {
        "model_config": {"logprobs_mode": "raw_logprobs", "max_logprobs": 3, "dtype": "torch.bfloat16"},
        "weight_transfer_config": {"backend": "nccl"},
    }
    fake.state.sizes = {"vocab_size": 7, "hidden_size": 32}
    with pytest.raises(UserError) as error:
        generator(made, fake, top_k=20, sync_lora="merged", max_model_length=100)
    text = str(error.value)
    for part in (
        f"the vLLM server at {fake.url} cannot be used",
        "set --logprobs-mode processed_logprobs",
        "--max-logprobs is 3, less than generation.top_k=20",
        "its weight transfer is nccl: set --weight-transfer-config",
        "it computes in bfloat16 and the trainer in float32: set --dtype float32, or generation.dtype=bfloat16",
        "it serves another model (model: vocab_size 7 and not",
        f"--max-model-len {CONTEXT}, less than generation.max_model_length=100",
        "VLLM_SERVER_DEV_MODE=1",
        "-m vllm.entrypoints.openai.api_server",
    ):
        assert part in text
    assert text.count("\n  - ") == 6


def test_a_server_without_its_weight_endpoints_is_told(fake, made):
    fake.state.status["server_info"] = 404
    with pytest.raises(UserError, match="VLLM_SERVER_DEV_MODE=1 is not set in its environment"):
        generator(made, fake)


def test_a_server_of_a_smaller_vocabulary_is_another_model(fake, made):
    """Without our worker extension: it refuses the last token of the trainer's model."""
    fake.state.once["v1/completions"] = [400]
    with pytest.raises(UserError, match=r"it serves another model .* which does not know token"):
        generator(made, fake)


@pytest.mark.rows("ASYNC-215", "ASYNC-216")
def test_an_old_server_is_warned_of_where_candidates_are_asked_for(fake, made, caplog):
    generator(made, fake)
    assert "below 0.32" not in caplog.text
    generator(made, fake, top_k=8)
    assert "is 0.31.0: below 0.32 the log-probs of generation.top_k candidates cost 20 to 40 % of its throughput" in caplog.text


@pytest.mark.rows("ASYNC-221")
def test_the_context_is_what_the_server_says(fake, made):
    """Of /v1/models, where the model and generation.max_model_length allow more."""
    assert generator(made, fake).context == CONTEXT < tiny_model().context
    assert generator(made, fake, max_model_length=40).context == 40


def test_two_trained_models_are_refused(fake):
    with pytest.raises(UserError, match=r"serves one model, and a, b are trained"):
        VLLMServerGenerator(config(fake), policies={"a": tiny_model(), "b": tiny_model()}, trainer=TrainerSide(torch.float32))


def test_arguments_that_the_server_does_not_know_are_refused(fake):
    with pytest.raises(UserError, match=r"generation\.generation_kwargs\.min_tokenz is no argument .*did you mean min_tokens"):
        VLLMServerGenerator(config(fake, generation_kwargs={"min_tokenz": 3}), policies={"policy": tiny_model()}, trainer=TrainerSide(torch.float32))


# sampling


@pytest.mark.rows("GRPO-207")
def test_a_group_is_one_call_and_each_rollout_gets_its_own_turn(fake, made):
    mine = generator(made, fake)
    mine.set_version(7)
    turns = sampled(
        mine, request(1, 2, key=6, number=0), request(1, 2, key=99, number=1), request(1, 3, key=9, number=2), request(1, 2, key=5, number=3, tokens=2)
    )
    bodies = fake.bodies("v1/completions")[-3:]
    assert sorted((tuple(sent["prompt"]), sent["n"], sent["seed"]) for sent in bodies) == [((1, 2), 1, 5), ((1, 2), 2, 6), ((1, 3), 1, 9)]
    assert [turn.finish for turn in turns] == [EOS, LENGTH, LENGTH, LENGTH], "the second of the group has the seed after the first"
    assert [len(turn.ids) for turn in turns] == [4, 4, 4, 2] and {turn.version for turn in turns} == {7}
    assert all(turn.prompt_ids.tolist()[0] == 1 for turn in turns)


def test_requests_are_sent_at_once_and_wait_for_nobody(fake, made):
    """A rollout that comes later does not wait for the ones under way."""
    fake.state.hang = 0.5
    mine = generator(made, fake)

    async def play() -> float:
        slow = asyncio.ensure_future(mine.sample(request(1)))
        await asyncio.sleep(0.3)
        fake.state.hang = 0.0
        began = time.monotonic()
        await mine.sample(request(2))
        passed = time.monotonic() - began
        await slow
        return passed

    assert asyncio.run(play()) < 0.25


@pytest.mark.cases("S46")
@pytest.mark.rows("ASYNC-219", "ASYNC-220", "GRPO-194")
def test_the_context_is_checked_before_a_request_is_sent(fake, made):
    mine = generator(made, fake, max_model_length=20)
    before = len(fake.paths)
    with pytest.raises(BadPrompt, match=r"the prompt has 20 tokens and the server's context is 20, which leaves none to sample; set data\.overlong_prompt"):
        sampled(mine, request(*range(1, 21)))
    with pytest.raises(BadPrompt, match="no tokens"):
        sampled(mine, request())
    assert len(fake.paths) == before
    (turn,) = sampled(mine, request(*range(1, 18), tokens=10))
    assert len(turn.ids) == 3, "cut to what the context leaves"


def test_an_error_reaches_every_rollout_of_the_call(fake, made):
    mine = generator(made, fake)
    fake.state.status["v1/completions"] = 400

    async def ask():
        return await asyncio.gather(*(mine.sample(request(1, number=number)) for number in range(2)), return_exceptions=True)

    assert ["told to answer 400" in str(error) for error in asyncio.run(ask())] == [True, True]


def test_nobody_waits_any_more(fake, made):
    """Rollouts that are cancelled take their call with them."""
    fake.state.hang = 1.0
    mine = generator(made, fake)

    async def play():
        waiting = [asyncio.ensure_future(mine.sample(request(1, number=number))) for number in range(2)]
        await asyncio.sleep(0.2)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.sleep(0)
        return mine.client.servers[0].load, len(mine._calls)

    began = time.monotonic()
    assert asyncio.run(play()) == (0, 0) and time.monotonic() - began < 3


def test_scores_go_to_all_servers(fake, made):
    other = FakeServer()
    mine = generator(made, fake, other)
    before = [len(server.paths) for server in (fake, other)]
    scores = mine.score("policy", [np.array([1, 2, 3]), np.array([4, 5])])
    assert [score.logprobs.tolist() for score in scores] == [[-0.5, -0.5], [-0.5]]
    assert [len(server.paths) - count for server, count in zip((fake, other), before, strict=True)] == [1, 1]
    with pytest.raises(BadPrompt, match="cannot be scored"):
        mine.score("policy", [np.ones(CONTEXT, np.int64)])
    other.close()


def test_a_score_that_a_server_gave_up_is_asked_for_again(fake, made, monkeypatch):
    """Another trainer of the server sent weights meanwhile. Not for ever."""
    monkeypatch.setattr(server_generator, "PAUSE", 0.01)
    mine = generator(made, fake)
    fake.state.gives_up = 2
    assert mine.score("policy", [np.array([1, 2, 3])])[0].logprobs.tolist() == [-0.5, -0.5]
    fake.state.gives_up = 10**9
    mine.config = dataclasses.replace(mine.config, timeout=0.1)
    with pytest.raises(Aborted, match="somebody sends it weights"):
        mine.score("policy", [np.array([1, 2, 3])])


def test_retries_are_counted_once_for_all_ranks(fake, made):
    mine = generator(made, fake)
    fake.state.once["v1/completions"] = [503]
    sampled(mine, request(1))
    assert mine.counters() == {"generation/retries": (1.0, 1.0), "generation/restarts": (0.0, 1.0)}
    assert mine.counters()["generation/retries"] == (0.0, 1.0)


# launched


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STUB), *sys.path]))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill_server(mine: VLLMServerGenerator, number: int = 0) -> None:
    """SIGKILL of the server itself, not of its warden."""
    warden = mine.fleet.processes[number].pid
    children = Path(f"/proc/{warden}/task/{warden}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)


def tell(mine: VLLMServerGenerator, **orders) -> None:
    httpx.post(f"{mine.fleet.control.urls[0]}/fake", json=orders)


@pytest.mark.rows("GRPO-200", "GRPO-206")
def test_launched_servers_get_folder_log_and_all_work(stub, made, tmp_path):
    mine = generator(made, launch=True, servers=2, trainer=TrainerSide(torch.float32, folder=tmp_path))
    assert sorted(path.name for path in (tmp_path / "servers").iterdir()) == ["model", "server_0.log", "server_1.log"]
    assert (tmp_path / "servers" / "model" / "config.json").is_file() and not list((tmp_path / "servers" / "model").glob("*.safetensors"))
    sampled(mine, *(request(number, number=number) for number in range(1, 5)))
    pids = [process.pid for process in mine.fleet.processes]
    mine.weights.receive("policy", iter([("a", torch.ones(2))]), 1)
    assert mine.weights.version() == 1
    mine.close()
    mine.close()
    assert not any(map(lives, pids))


@pytest.mark.parametrize("how", ["deaf_at", "ends_at"])
@pytest.mark.parametrize("moment", ["sampling", "sync"])
def test_a_server_whose_engine_died_is_gone(stub, made, tmp_path, moment, how):
    """What vLLM does: the engine's process is gone; the server says errors for some seconds, or ends only when nobody holds a connection to it."""
    mine = generator(made, launch=True, restart=1, timeout=60.0, trainer=TrainerSide(torch.float32, folder=tmp_path))
    tell(mine, **{how: "v1/completions" if moment == "sampling" else "pause"})
    began = time.monotonic()
    with pytest.raises(ServerLost if moment == "sampling" else SyncError, match=r"server_0\.log"):
        sampled(mine, request(1)) if moment == "sampling" else mine.weights.receive("policy", iter([("a", torch.ones(2))]), 1)
    assert time.monotonic() - began < 30
    assert mine.recover() and len(sampled(mine, request(1))) == 1


@pytest.mark.parametrize("moment", ["between", "sampling", "sync"])
def test_a_server_that_dies_is_told_at_once_with_its_log(stub, made, tmp_path, moment):
    mine = generator(made, launch=True, timeout=30.0, trainer=TrainerSide(torch.float32, folder=tmp_path))
    began = time.monotonic()
    if moment == "sync":
        tell(mine, die_at="update_weights")
        with pytest.raises(SyncError, match=r"(?s)ended with code 137; the end of .*server_0\.log"):
            mine.weights.receive("policy", iter([("a", torch.ones(2))]), 1)
    else:
        kill_server(mine) if moment == "between" else tell(mine, die_at="v1/completions")
        with pytest.raises(ServerLost, match=r"(?s)ended with code 137; the end of .*server_0\.log"):
            sampled(mine, request(1))
    assert time.monotonic() - began < 10
    assert not mine.recover(), "generation.restart=0"


def test_restart_starts_a_dead_server_again_as_often_as_allowed(stub, made, tmp_path):
    mine = generator(made, launch=True, restart=1, timeout=30.0, trainer=TrainerSide(torch.float32, folder=tmp_path))
    mine.weights.receive("policy", iter([("a", torch.ones(2))]), 3)
    assert not mine.recover(), "nothing has died"
    kill_server(mine)
    with pytest.raises(ServerLost):
        sampled(mine, request(1))
    assert mine.recover() and mine.weights.version() == -1, "a new server has no weights of ours"
    mine.weights.receive("policy", iter([("a", torch.ones(2))]), 3)
    assert len(sampled(mine, request(1))) == 1 and mine.weights.version() == 3
    assert mine.counters()["generation/restarts"] == (1.0, 1.0)
    kill_server(mine)
    with pytest.raises(ServerLost):
        sampled(mine, request(1))
    assert not mine.recover()


def test_a_server_that_does_not_start_leaves_none_of_its_kind(stub, made, tmp_path):
    with pytest.raises(UserError, match=r"(?s)ended with code 3; .*out of memory"):
        generator(made, launch=True, servers=2, engine_kwargs={"fail": "out of memory"}, trainer=TrainerSide(torch.float32, folder=tmp_path))


@pytest.mark.rows("GRPO-198")
def test_a_tensor_parallel_size_that_does_not_divide_the_heads(made, tmp_path):
    with pytest.raises(UserError, match=r"generation\.tensor_parallel_size=3 does not divide the 2 attention heads of the model: choose a divisor of 2"):
        generator(made, launch=True, tensor_parallel_size=3, trainer=TrainerSide(torch.float32, folder=tmp_path))


def test_another_address_needs_expose_and_is_warned_of(stub, made, tmp_path, caplog):
    generator(made, launch=True, host="0.0.0.0", expose=True, trainer=TrainerSide(torch.float32, folder=tmp_path))
    assert "whoever reaches port" in caplog.text


def side(ranks: ThreadCollectives, folder: Path) -> TrainerSide:
    return TrainerSide(torch.float32, ranks.rank, ranks.world, folder, ranks.gather_objects)


def test_two_ranks_share_the_server_that_rank_0_started(stub, made, tmp_path):
    """Rank 1 learns of its death at once too, and both start again together."""
    alive = []

    def work(ranks: ThreadCollectives):
        mine = generator(made, launch=True, restart=1, timeout=30.0, trainer=side(ranks, tmp_path))
        alive.append(len(mine.fleet.processes))
        turns = sampled(mine, request(1, number=ranks.rank))
        ranks.gather_objects(None)
        if ranks.rank == 0:
            kill_server(mine)
            while mine.fleet.processes[0].code is None:
                time.sleep(0.05)
        ranks.gather_objects(None)
        began = time.monotonic()
        with pytest.raises(ServerLost):
            sampled(mine, request(1))
        told = time.monotonic() - began
        assert mine.recover()
        return len(turns), len(sampled(mine, request(1))), told < 5

    assert on_ranks(2, work) == [(1, 1, True)] * 2 and sorted(alive) == [0, 1]


def test_what_rank_0_cannot_start_is_an_error_on_every_rank(stub, made, tmp_path):
    def work(ranks: ThreadCollectives):
        generator(made, launch=True, engine_kwargs={"fail": "no such model"}, trainer=side(ranks, tmp_path))

    first, second = on_ranks(2, work)
    assert isinstance(first, UserError) and isinstance(second, PeerError) and "no such model" in str(second)
