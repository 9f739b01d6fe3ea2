"""What can only be seen on a GPU: attention of packed rows, its numbers and its speed, in under 8 minutes and without any download.

    python scripts/gpu_check.py [--out FILE]          on a CUDA device
    python scripts/gpu_check.py --small               the same code on whatever is there, tiny: a test runs it

For each workload, random weights and random ragged completions: the log-probs and gradients of every attention backend against the dense
mask in float32, then the time and memory of one forward and backward in bfloat16 against a padded baseline written from transformers
alone (its micro-batch the fastest of several). A backend that passes here may be named in rlexp/models/attention/interface.CHECKED.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlexp.batching.packer import MicroBatch, pack
from rlexp.batching.terms import Terms, flatten
from rlexp.config.generation import NativeGenerationConfig, TransformersGenerationConfig
from rlexp.generation.native import NativeGenerator
from rlexp.generation.transformers_generate import TransformersGenerator
from rlexp.models.loaded import LoadedModel
from rlexp.models.network import Network, row_tensors
from rlexp.models.tokenizer import character_tokenizer
from rlexp.records.keys import key
from rlexp.records.request import Request
from rlexp.records.sample import Sample

BATCHES = (8, 16, 32, 64)
ROUNDS = 5
BUDGET = 16_384


@dataclass(frozen=True)
class Workload:
    """prompts x generations completions of at most `longest` tokens, of ragged length."""

    name: str
    prompts: int
    prompt_tokens: int
    generations: int
    longest: int
    hidden: int
    layers: int
    heads: int
    vocabulary: int


WORKLOADS = (
    Workload("W1", 8, 200, 8, 128, 128, 4, 4, 1024),
    Workload("W3", 8, 32, 8, 512, 128, 4, 4, 1024),
    Workload("0.5B", 8, 512, 8, 512, 896, 24, 14, 151_936),
)
SMALL = (Workload("small", 2, 20, 3, 16, 32, 2, 2, 128),)


@dataclass
class Line:
    """One row of the table."""

    workload: str
    what: str
    seconds: float = float("nan")
    ratio: float = float("nan")
    memory_gib: float = float("nan")
    logp_error: float = float("nan")
    gradient_cosine: float = float("nan")
    note: str = ""


def model(workload: Workload, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Random weights, the same for every dtype."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=workload.vocabulary,
        hidden_size=workload.hidden,
        intermediate_size=4 * workload.hidden,
        num_hidden_layers=workload.layers,
        num_attention_heads=workload.heads,
        num_key_value_heads=max(1, workload.heads // 2),
        head_dim=max(32, workload.hidden // workload.heads),
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        initializer_range=0.05,
        eos_token_id=None,
        bos_token_id=None,
    )
    module: torch.nn.Module = Qwen3ForCausalLM(config)
    return LoadedModel(module.to(device, dtype).eval(), character_tokenizer(4096), (), 4096, workload.name)


def samples(workload: Workload) -> list[Sample]:
    """Completions with a mean length of about 0.35 of the longest."""
    random, made = np.random.default_rng(0), []
    for prompt in range(workload.prompts):
        start = random.integers(0, workload.vocabulary, workload.prompt_tokens)
        for number in range(workload.generations):
            length = int(min(workload.longest, 1 + random.exponential(0.37 * workload.longest)))
            ids = np.concatenate([start, random.integers(0, workload.vocabulary, length)])
            position = np.arange(len(start) - 1, len(ids) - 1)
            made.append(Sample("policy", prompt * workload.generations + number, ids, position, ids[position + 1], np.zeros(length, np.float32)))
    return made


class Packed:
    """rlexp's forward and backward of all samples in packed rows."""

    def __init__(self, loaded: LoadedModel, made: list[Sample], attention: str) -> None:
        self.network = Network(loaded, attention=attention).train()
        self.terms: Terms = flatten(made)
        self.rows: list[MicroBatch] = pack(made, self.terms, range(len(made)), budget=BUDGET)[0]

    def logps(self) -> Tensor:
        """Log-probs of all terms, [L], with gradient."""
        out = torch.zeros(self.terms.count, dtype=torch.float32, device=self.network.device)
        for micro_batch in self.rows:
            found = self.network(row_tensors(micro_batch.row, self.terms, self.network.device), ["logp"])["logp"]
            out = out.index_put((torch.from_numpy(micro_batch.row.term_L).to(out.device),), found.float())
        return out

    def step(self) -> None:
        """Forward and backward, row by row."""
        self.network.zero_grad()
        for micro_batch in self.rows:
            self.network(row_tensors(micro_batch.row, self.terms, self.network.device), ["logp"])["logp"].sum().backward()


class Padded:
    """The baseline: padded batches through transformers' model, logits of the completions only."""

    def __init__(self, loaded: LoadedModel, made: list[Sample], batch: int) -> None:
        self.module, self.made, self.batch = loaded.module.train(), made, batch
        self.prompt = len(made[0].ids) - made[0].terms

    def step(self) -> None:
        """Forward and backward, micro-batch by micro-batch."""
        self.module.zero_grad()
        device = next(self.module.parameters()).device
        width = max(sample.terms for sample in self.made)
        for start in range(0, len(self.made), self.batch):
            part = self.made[start : start + self.batch]
            ids, mask = np.zeros((len(part), self.prompt + width), np.int64), np.zeros((len(part), self.prompt + width), np.int64)
            for row, sample in enumerate(part):
                ids[row, : len(sample.ids)], mask[row, : len(sample.ids)] = sample.ids, 1
            ids_BT, mask_BT = torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)
            logits = self.module(input_ids=ids_BT, attention_mask=mask_BT, logits_to_keep=width + 1, use_cache=False).logits[:, :-1].float()
            logps = torch.log_softmax(logits, -1).gather(-1, ids_BT[:, self.prompt :, None])[..., 0]
            (logps * mask_BT[:, self.prompt :]).sum().backward()


def measured(step: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Median seconds of a step and the memory it takes above what was held, in GiB."""
    cuda = device.type == "cuda"
    step()
    held = torch.cuda.memory_allocated() if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(ROUNDS):
        since = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - since)
    return statistics.median(seconds), (torch.cuda.max_memory_allocated() - held) / 2**30 if cuda else float("nan")


def gradient(module: torch.nn.Module) -> Tensor:
    """All gradients, flat, float32, on the CPU."""
    return torch.cat([parameter.grad.flatten().float().cpu() for parameter in module.parameters() if parameter.grad is not None])


def numbers(workload: Workload, device: torch.device, backends: list[str], dtype: torch.dtype) -> list[Line]:
    """Log-probs and gradients of each backend against the dense mask in float32."""
    made, lines = samples(workload), []
    reference = Packed(model(workload, device, torch.float32), made, "sdpa")
    with torch.no_grad():
        expected = reference.logps()
    reference.step()
    wanted = gradient(reference.network)
    del reference
    for name in ["sdpa", *backends]:
        packed = Packed(model(workload, device, dtype), made, name)
        with torch.no_grad():
            error = float((packed.logps() - expected).abs().max())
        packed.step()
        cosine = float(torch.nn.functional.cosine_similarity(gradient(packed.network), wanted, dim=0))
        lines.append(Line(workload.name, f"numbers: {name} in {str(dtype).removeprefix('torch.')}", logp_error=error, gradient_cosine=cosine))
    return lines


def speed(workload: Workload, device: torch.device, backends: list[str], dtype: torch.dtype) -> list[Line]:
    """Time and memory of each backend against the fastest padded baseline."""
    made, loaded, lines = samples(workload), model(workload, device, dtype), []
    tried: list[tuple[float, float, int]] = []
    for batch in (size for size in BATCHES if size <= len(made)) if len(made) >= BATCHES[0] else (len(made),):
        try:
            tried.append((*measured(Padded(loaded, made, batch).step, device), batch))
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
    seconds, memory, batch = min(tried)
    lines.append(Line(workload.name, "padded baseline", seconds, 1.0, memory, note=f"micro-batch {batch}, the fastest of {[size for *_, size in tried]}"))
    for name in ["sdpa", *backends]:
        packed = Packed(loaded, made, name)
        own, own_memory = measured(packed.step, device)
        tokens = sum(micro_batch.row.tokens for micro_batch in packed.rows)
        lines.append(Line(workload.name, f"packed: {name}", own, seconds / own, own_memory, note=f"{tokens} tokens in {len(packed.rows)} rows"))
    return lines


def requests_of(workload: Workload, lengths: Callable[[Sample], int]) -> list[Request]:
    """A request for each sample."""
    return [
        Request(sample.ids[: workload.prompt_tokens], key("gpu check", number), lengths(sample), order=(number,))
        for number, sample in enumerate(samples(workload))
    ]


def graph_numbers(workload: Workload, device: torch.device) -> Line:
    """Steps of one shape against plain ones in float32, ragged lengths: log-probs as far as the same tokens were drawn."""
    loaded, requests = model(workload, device, torch.float32), requests_of(workload, lambda sample: sample.terms)
    plain, fixed = (NativeGenerator(NativeGenerationConfig(cuda_graphs=graphs), policies={"policy": loaded}).sample_wave(requests) for graphs in (False, True))
    error, equal = 0.0, 0
    for one, other in zip(plain, fixed, strict=True):
        different = np.flatnonzero(one.ids != other.ids)
        shared = int(different[0]) if len(different) else len(one.ids)
        equal += not len(different)
        error = max(error, float(np.abs(one.logprobs[:shared] - other.logprobs[:shared]).max(initial=0.0)))
    return Line(workload.name, "numbers: decoding by CUDA graphs", logp_error=error, note=f"{equal} of {len(plain)} completions have the same tokens")


def generation(workload: Workload, device: torch.device, dtype: torch.dtype) -> list[Line]:
    """native against transformers' generate, every completion at its full length."""
    loaded, requests = model(workload, device, dtype), requests_of(workload, lambda _: workload.longest)
    generators = {
        "transformers": TransformersGenerator(TransformersGenerationConfig(), policies={"policy": loaded}),
        "native": NativeGenerator(NativeGenerationConfig(), policies={"policy": loaded}),
        "native with CUDA graphs": NativeGenerator(NativeGenerationConfig(cuda_graphs=True), policies={"policy": loaded}),
    }
    taken = {name: measured(functools.partial(made.sample_wave, requests), device) for name, made in generators.items()}
    slow = taken["transformers"][0]
    return [Line(workload.name, f"generation: {name}", seconds, slow / seconds, memory) for name, (seconds, memory) in taken.items()]


def table(lines: list[Line]) -> str:
    """The lines as Markdown."""
    head = "| workload | what | seconds | times baseline | GiB | largest log-prob error | gradient cosine | |"
    rows = [
        f"| {line.workload} | {line.what} | {line.seconds:.3f} | {line.ratio:.2f} | {line.memory_gib:.2f} | {line.logp_error:.1e} | "
        f"{line.gradient_cosine:.6f} | {line.note} |".replace("nan", "")
        for line in lines
    ]
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *rows])


def weights_reach_servers() -> bool:
    """Weights to a vLLM server by ipc, nccl (with a second GPU) and shared memory (scripts/transfer_check.py), an engine that sleeps
    (scripts/sleep_check.py); skipped without vLLM."""
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed (pip install 'rlexp[vllm]'): ipc, nccl and sleep are not checked")
        return True
    codes = [subprocess.run([sys.executable, str(Path(__file__).with_name(name))]).returncode for name in ("transfer_check.py", "sleep_check.py")]
    return not any(codes)


def main() -> None:
    """All checks; exit 1 when a backend's numbers are off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--small", action="store_true", help="tiny sizes, on a CPU if there is no GPU")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not arguments.small:
        sys.exit("no CUDA device: nothing to check (--small runs the same code on the CPU)")
    backends = ["flex", "varlen"] if device.type == "cuda" else ["tiles"]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    lines: list[Line] = []
    for workload in SMALL if arguments.small else WORKLOADS:
        lines += numbers(workload, device, backends, dtype)
        lines += speed(workload, device, backends, dtype)
        if workload is not WORKLOADS[-1]:
            lines += [graph_numbers(workload, device), *generation(workload, device, dtype)]
        print(table(lines), flush=True)
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"device": where, "torch": torch.__version__, "lines": [asdict(line) for line in lines]}, indent=1))
    plain = {line.workload: line for line in lines if "numbers: sdpa" in line.what}
    off = [line for line in lines if "numbers" in line.what and (line.gradient_cosine < 0.99 or line.logp_error > 3 * plain[line.workload].logp_error + 1e-4)]
    print(f"{where}: {'all numbers agree' if not off else 'WRONG: ' + ', '.join(f'{line.workload} {line.what}' for line in off)}")
    reached = arguments.small or weights_reach_servers()
    sys.exit(bool(off) or not reached)


if __name__ == "__main__":
    main()
