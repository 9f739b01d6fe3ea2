"""Requests to servers: what goes over the wire, balancing, retries, and how soon a dead server is told."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from server_fake import FakeServer

from rlexp.config.errors import UserError
from rlexp.generation.vllm_server import client as client_module
from rlexp.generation.vllm_server.client import Client, Server, ServerLost
from rlexp.generation.vllm_server.control import Control, Refused, Unreachable
from rlexp.generation.vllm_server.process import free_port
from rlexp.generation.vllm_server.wire import Aborted, completion_body, score_body, score_of, turns_of
from rlexp.records.request import Request, Sampling
from rlexp.records.turn import EOS, LENGTH, STOP


@pytest.fixture
def fake():
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(client_module, "LOOK", 0.05)


def body(n: int = 1, tokens: int = 3) -> dict:
    request = Request(np.array([1, 2]), 4, tokens)
    return completion_body([request] * n, model="model", eos_ids=[2], regex=None)


def client(*servers: Server, timeout: float = 2.0, request_timeout: float = 10.0, first: int = 0) -> Client:
    return Client(servers, timeout=timeout, request_timeout=request_timeout, first=first)


@pytest.mark.rows("GRPO-207", "ASYNC-223")
def test_a_request_says_everything_about_its_sampling():
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2, stop=("x",), stop_ids=(7,), extra=(("min_tokens", 2),))
    requests = [Request(np.array([3, 4]), 2**63 + 5, 8, sampling, order=(0, 0, number)) for number in range(2)]
    sent = completion_body(requests, model="m", eos_ids=(2, 9), regex="[0-9]+")
    expected = {
        "model": "m",
        "prompt": [3, 4],
        "n": 2,
        "max_tokens": 8,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "stop": ["x"],
        "include_stop_str_in_output": True,
        "stop_token_ids": [2, 7, 9],
        "logprobs": 5,
        "return_token_ids": True,
        "structured_outputs": {"regex": "[0-9]+"},
        "min_tokens": 2,
    }
    assert {name: sent[name] for name in expected} == expected
    assert 0 <= sent["seed"] < 2**62


def choice(ids: list[int], reason: str, logprobs: list | None = None, top: list | None = None) -> dict:
    values = logprobs or [-0.5] * len(ids)
    listed = top or [{f"token_id:{token}": value} for token, value in zip(ids, values, strict=True)]
    return {"index": 0, "finish_reason": reason, "stop_reason": None, "token_ids": ids, "logprobs": {"token_logprobs": values, "top_logprobs": listed}}


@pytest.mark.parametrize(("ids", "reason", "finish"), [([5, 2], "stop", EOS), ([5, 7], "stop", STOP), ([5, 6], "length", LENGTH), ([5, 9], "length", EOS)])
def test_finish_reasons(ids, reason, finish):
    (turn,) = turns_of({"choices": [choice(ids, reason)]}, [Request(np.array([1]), 0, 2)], (2, 9), 3)
    assert (turn.finish, turn.version, turn.ids.tolist()) == (finish, 3, ids)
    assert turn.logprobs.dtype == np.float32 and turn.candidates is None


def test_candidates_are_the_ids_that_were_not_cut():
    top = [{"token_id:5": -0.1, "token_id:8": -2.4, "token_id:6": -9999.0}, {"token_id:6": 0.0, "token_id:5": -9999.0}]
    request = Request(np.array([1]), 0, 2, Sampling(top_k=3, top_p=0.9))
    (turn,) = turns_of({"choices": [choice([5, 6], "length", top=top)]}, [request], (2,), 0)
    assert [turn.candidates.of(token).tolist() for token in range(2)] == [[5, 8], [6]]


def test_a_missing_logprob_is_nan_and_answers_without_ids_are_refused():
    request = Request(np.array([1]), 0, 1)
    (turn,) = turns_of({"choices": [choice([5], "length", [None], [None])]}, [request], (2,), 0)
    assert np.isnan(turn.logprobs).all()
    with pytest.raises(UserError, match=r"must be vLLM 0\.32 or newer"):
        turns_of({"choices": [{**choice([5], "length"), "token_ids": None}]}, [request], (2,), 0)
    with pytest.raises(UserError, match="1 completions where 2"):
        turns_of({"choices": [choice([5], "length")]}, [request] * 2, (2,), 0)
    with pytest.raises(Aborted):
        turns_of({"choices": [choice([5], "abort")]}, [request], (2,), 0)


def test_scores_are_read_by_token_and_rank():
    listed = [None, {"7": {"logprob": -3.0, "rank": 9}, "1": {"logprob": -0.1, "rank": 1}, "2": {"logprob": -2.5, "rank": 2}}]
    score = score_of({"choices": [{"finish_reason": "length", "prompt_logprobs": listed}]}, [4, 7], 2)
    assert score.logprobs.tolist() == [-3.0] and score.top_ids.tolist() == [[1, 2]]
    assert score.top_logprobs == pytest.approx(np.array([[-0.1, -2.5]]))
    assert score_body([4, 7], None, "m")["prompt_logprobs"] == 0


def test_each_request_goes_to_the_server_with_the_least_to_do(fake):
    other = FakeServer()
    for server in (fake, other):
        server.state.hang = 0.3
    pool = client(Server(fake.url), Server(other.url))

    async def many():
        await asyncio.gather(pool.complete(body(n=4)), *(pool.complete(body()) for _ in range(4)))

    asyncio.run(many())
    assert [sum(sent["n"] for sent in server.bodies("v1/completions")) for server in (fake, other)] == [4, 4]
    assert len(other.bodies("v1/completions")) == 4, "all were sent at once, before the first had ended"
    assert other.state.most_running == 4
    assert client(Server(fake.url), Server(other.url), first=1).least_loaded().url == other.url
    other.close()


def test_busy_answers_are_repeated_and_counted(fake):
    fake.state.once["v1/completions"] = [503, 500, 0]
    pool = client(Server(fake.url))
    assert asyncio.run(pool.complete(body()))["choices"]
    assert pool.retries == 2


def test_a_refusal_is_not_repeated(fake):
    fake.state.status["v1/completions"] = 400
    pool = client(Server(fake.url))
    with pytest.raises(Refused, match="refused a request with code 400: told to answer 400"):
        asyncio.run(pool.complete(body()))
    assert pool.retries == 0 and len(fake.bodies("v1/completions")) == 1


@pytest.mark.parametrize("how", ["closed", "busy", "silent"])
def test_a_server_out_of_reach_is_told_within_its_deadline(fake, how):
    """No connection; only errors; and one that takes connections and says nothing, as a stopped process does."""
    if how == "closed":
        fake.close()
    elif how == "busy":
        fake.state.status["v1/completions"] = 503
    else:
        fake.state.silent = True
    began = time.monotonic()
    with pytest.raises(ServerLost, match=r"out of reach for generation\.timeout=0\.6 seconds"):
        asyncio.run(client(Server(fake.url), timeout=0.6).complete(body()))
    assert time.monotonic() - began < 5


def test_a_slow_answer_of_a_server_that_lives_is_waited_for(fake):
    fake.state.hang = 1.0
    assert asyncio.run(client(Server(fake.url), timeout=0.4).complete(body()))["choices"]


def test_one_request_has_a_deadline_of_its_own(fake):
    fake.state.hang = 5.0
    with pytest.raises(ServerLost, match=r"generation\.request_timeout=0\.3 seconds"):
        asyncio.run(client(Server(fake.url), request_timeout=0.3).complete(body()))


def test_a_launched_server_that_died_is_told_at_once(fake):
    fake.state.silent = True
    began = time.monotonic()
    with pytest.raises(ServerLost, match="it died"):
        asyncio.run(client(Server(fake.url, lambda: UserError("it died")), timeout=60).complete(body()))
    assert time.monotonic() - began < 5


def test_calls_to_all_servers_raise_the_first_error_after_all_have_ended(fake):
    other = FakeServer()
    fake.state.status["resume"] = 500
    control = Control([fake.url, other.url], 5.0)
    with pytest.raises(Refused, match="refused resume with code 500"):
        control.everywhere("resume")
    assert other.paths == ["resume"]
    other.close()
    control.close()
    nobody = Control([f"http://127.0.0.1:{free_port()}"], 5.0)
    with pytest.raises(Unreachable, match="does not answer weight_info"):
        nobody.get("weight_info")
    nobody.close()
