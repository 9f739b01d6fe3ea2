"""make bench: how much work prefix sharing and leaving rows save, as ratios of medians in one process (A B A B ...).

Generation: generation=native against generation=transformers, same weights, prompts, keys. Update: forward and backward of a step in
packed rows against the same samples one to a row. Both sides give the same numbers; that is checked before anything is timed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from rlexp.batching.packer import MicroBatch, pack
from rlexp.batching.terms import Terms, flatten
from rlexp.components import register_all
from rlexp.config.generation import NativeGenerationConfig, TransformersGenerationConfig
from rlexp.generation.native import NativeGenerator
from rlexp.generation.transformers_generate import TransformersGenerator
from rlexp.models.loaded import LoadedModel
from rlexp.models.network import Network, row_tensors
from rlexp.records.keys import generator, key
from rlexp.records.request import Request
from rlexp.records.sample import Sample

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from models_for_tests import tiny_model

PROMPTS, PROMPT_TOKENS, COMPLETIONS, LONGEST = 8, 200, 8, 128


def requests(loaded: LoadedModel) -> list[Request]:
    """Random prompts, each for several completions of ragged lengths (mean about 0.35 of the longest)."""
    random = generator("bench")
    made = []
    for prompt in range(PROMPTS):
        ids = random.integers(5, 90, size=PROMPT_TOKENS)
        for number in range(COMPLETIONS):
            length = int(min(LONGEST, 1 + random.exponential(0.37 * LONGEST)))
            made.append(Request(ids, key("bench", prompt, number), length, order=(prompt, number)))
    return made


def timed(work: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each piece of work, taken in turn; one round before is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for round_number in range(rounds + 1):
        for name, call in work.items():
            since = time.perf_counter()
            call()
            if round_number:
                seconds[name].append(time.perf_counter() - since)
    return seconds


def report(title: str, seconds: dict[str, list[float]], fast: str, slow: str) -> None:
    """One line: the ratio of medians with its range, and the medians."""
    ratios = [b / a for a, b in zip(seconds[fast], seconds[slow], strict=True)]
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    times = ", ".join(f"{name} {value:.3f} s" for name, value in medians.items())
    print(f"{title}: {medians[slow] / medians[fast]:.2f}x ({min(ratios):.2f}-{max(ratios):.2f}; {times})")


def bench_generation(loaded: LoadedModel, rounds: int) -> None:
    """native against transformers' generate."""
    wanted = requests(loaded)
    native = NativeGenerator(NativeGenerationConfig(), policies={"policy": loaded})
    hugging_face = TransformersGenerator(TransformersGenerationConfig(), policies={"policy": loaded})
    pairs = zip(native.sample_wave(wanted), hugging_face.sample_wave(wanted), strict=True)
    same = sum(np.array_equal(a.ids, b.ids) for a, b in pairs)
    print(f"same completions: {same} of {len(wanted)}")
    work = {"native": lambda: native.sample_wave(wanted), "transformers": lambda: hugging_face.sample_wave(wanted)}
    report("generation", timed(work, rounds), "native", "transformers")


def gradient(network: Network, rows: list[MicroBatch], terms: Terms) -> torch.Tensor:
    """Gradient of the mean log-prob."""
    network.zero_grad()
    for micro_batch in rows:
        (network(row_tensors(micro_batch.row, terms, network.device), ["logp"])["logp"].sum() / terms.count).backward()
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None])


def bench_update(loaded: LoadedModel, rounds: int) -> None:
    """Shared-prefix rows against one sample to a row."""
    samples = []
    for number, turn in enumerate(NativeGenerator(NativeGenerationConfig(), policies={"policy": loaded}).sample_wave(requests(loaded))):
        ids = np.concatenate([turn.prompt_ids, turn.ids])
        position = np.arange(len(turn.prompt_ids) - 1, len(ids) - 1)
        samples.append(Sample("policy", number, ids, position, turn.ids, turn.logprobs))
    terms = flatten(samples)
    packed = pack(samples, terms, range(len(samples)), budget=4096)[0]
    alone = [micro_batch for number in range(len(samples)) for micro_batch in pack(samples, terms, [number], budget=4096)[0]]
    network = Network(loaded)
    cosine = torch.nn.functional.cosine_similarity(gradient(network, packed, terms), gradient(network, alone, terms), dim=0)
    tokens = [sum(micro_batch.row.tokens for micro_batch in rows) for rows in (packed, alone)]
    print(f"gradient cosine {float(cosine):.7f}; forwarded tokens {tokens[0]} packed, {tokens[1]} alone; trained {terms.count}")
    work = {"packed": lambda: gradient(network, packed, terms), "alone": lambda: gradient(network, alone, terms)}
    report("update", timed(work, rounds), "packed", "alone")


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    register_all()
    loaded = tiny_model(hidden=128, layers=4, heads=4, dtype=torch.float32, context=512)
    print(f"{sum(parameter.numel() for parameter in loaded.module.parameters()):,} parameters, {torch.get_num_threads()} threads, torch {torch.__version__}")
    bench_generation(loaded, rounds)
    bench_update(loaded, rounds)


if __name__ == "__main__":
    main()
