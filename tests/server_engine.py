"""Real vLLM servers for the tests in tests/vllm_engine: started once for a file, used by generators that attach to them, and killed."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models_for_tests import tiny_model

from rlexp.config.vllm_server import VLLMServerGenerationConfig
from rlexp.generation.vllm_server.generator import VLLMServerGenerator
from rlexp.generation.weight_sync.base import TrainerSide
from rlexp.generation.weight_sync.push import WeightSync
from rlexp.models.loaded import LoadedModel
from rlexp.records.request import Request, Sampling
from rlexp.records.turn import Turn

FAST = {"enforce_eager": True, "max_num_seqs": 16}
EXACT = 1e-5


def model(**options: Any) -> LoadedModel:
    """A random model, with tied embeddings."""
    return tiny_model(**{"dtype": torch.float32, "hidden": 64, "tied": True, "spread": 2.0, **options})


def started(policy: LoadedModel, folder: Path | None = None, **options: Any) -> VLLMServerGenerator:
    """A generator that started its servers."""
    config = VLLMServerGenerationConfig(**{"launch": True, "timeout": 400.0, "engine_kwargs": FAST, **options})
    return VLLMServerGenerator(config, policies={"policy": policy}, trainer=TrainerSide(torch.float32, folder=folder))


def attached(to: VLLMServerGenerator, policy: LoadedModel, dtype: torch.dtype = torch.float32, **options: Any) -> VLLMServerGenerator:
    """Another trainer on the servers of a generator."""
    config = VLLMServerGenerationConfig(base_url=",".join(to.fleet.control.urls), timeout=60.0, **options)
    return VLLMServerGenerator(config, policies={"policy": policy}, trainer=TrainerSide(dtype))


def sync_of(generator: VLLMServerGenerator) -> WeightSync:
    """A sync that has sent nothing yet."""
    return WeightSync(generator.config, generator, generator.policies)


def move(module: torch.nn.Module, seed: int) -> None:
    """What an optimizer step does, with trained weights only."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=noise))


def exact_after_syncs(generator: VLLMServerGenerator, sync: WeightSync, syncs: int = 5) -> None:
    """The log-probs of every server are the trainer's after each of several syncs, and the version is read back."""
    for version in range(1, syncs + 1):
        move(generator.policies["policy"].module, version)
        sync.announce(version)
        assert sync.bring() > 0
        assert sync.difference("policy") < EXACT
        assert generator.weights.version() == version == generator.version


def sampled(generator: VLLMServerGenerator, *requests: Request) -> list[Turn]:
    """The turns of requests that are made at once."""

    async def ask() -> list[Turn]:
        return await asyncio.gather(*(generator.sample(request) for request in requests))

    return asyncio.run(ask())


def request(*ids: int, key: int = 5, number: int = 0, tokens: int = 12, **sampling: Any) -> Request:
    """One request."""
    return Request(np.array(ids), key, tokens, Sampling(**sampling), order=(0, 0, number, 0))


@torch.no_grad()
def logprobs_of(policy: LoadedModel, turn: Turn, temperature: float = 1.0) -> np.ndarray:
    """Of a turn's tokens by one forward of the trainer's model, over the turn's candidates if it has some."""
    ids = torch.from_numpy(np.concatenate([turn.prompt_ids, turn.ids]))
    logits = policy.module(ids[None]).logits[0, len(turn.prompt_ids) - 1 : -1].float() / temperature
    if turn.candidates is not None:
        kept = torch.zeros_like(logits, dtype=torch.bool)
        for place in range(len(turn.ids)):
            kept[place, torch.from_numpy(turn.candidates.of(place))] = True
        logits = logits.masked_fill(~kept, -torch.inf)
    return logits.log_softmax(-1).gather(-1, torch.from_numpy(turn.ids)[:, None])[:, 0].numpy()


def sample_until(generator: VLLMServerGenerator, happens: Callable[[], object]) -> None:
    """Sample without an end, from several rollouts at once; `happens` is called when the first of them has got an answer, with the others under way."""

    async def play() -> None:
        answered = asyncio.Event()

        async def rollout(number: int) -> None:
            for key in itertools.count():
                await generator.sample(request(5, 6 + number, number=number, key=key, tokens=100))
                answered.set()

        rollouts = [asyncio.ensure_future(rollout(number)) for number in range(6)]
        first = asyncio.ensure_future(answered.wait())
        await asyncio.wait([first, *rollouts], return_when=asyncio.FIRST_COMPLETED)
        happens()
        await asyncio.gather(*rollouts)

    asyncio.run(play())


def leader_of(generator: VLLMServerGenerator, number: int = 0) -> int:
    """The process of a launched server that speaks HTTP; its group holds all the others."""
    warden = generator.fleet.processes[number].pid
    return int(Path(f"/proc/{warden}/task/{warden}/children").read_text().split()[0])


def group_of(generator: VLLMServerGenerator, number: int = 0) -> set[int]:
    """The processes of a launched server."""
    leader = str(leader_of(generator, number))
    lines = subprocess.run(["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout.splitlines()
    return {int(pid) for pid, group, state in map(str.split, lines) if group == leader and not state.startswith("Z")}


def engine_process(generator: VLLMServerGenerator) -> int:
    """The process that holds the model, below the one that speaks HTTP."""
    return max(group_of(generator) - {leader_of(generator)}, key=lambda pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]))


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
