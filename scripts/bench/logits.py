"""Memory of the head alone: extra bytes of its forward and backward above weights and their gradients, in a process of its own.

Both sides give the log-probs of as many targets, whose sum is differentiated: rlexp by a Network whose row has few positions, each
with many loss terms, so that next to nothing is spent before the head; TRL by the function that its patched forward calls (with the
entropy that its trainer always asks for, as a metric).
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from scripts.bench.recorder import Memory
from scripts.bench.workloads import THREADS, LogitsCase

WARM_UP = 16
"""terms of a first pass, which loads what is loaded once"""
POSITIONS = 16


def main(pipe: Connection, side: str, tokens: int, case: LogitsCase) -> None:
    """Sends the extra bytes. side: rlexp or trl."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    run = rlexp_pass(case) if side == "rlexp" else trl_pass(case)
    run(WARM_UP)
    pipe.send(run(tokens))


def device() -> torch.device:
    """Where it is measured."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def extra_bytes(weight: Tensor, logps: Callable[[], Tensor]) -> int:
    """Peak of forward and backward above what is there before, without the gradient of the head."""
    weight.grad = None
    memory = Memory()
    memory.reset()
    logps().sum().backward()
    return memory.peak - weight.numel() * weight.element_size()


def head_network(case: LogitsCase) -> Any:
    """A Network with next to nothing before its head."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from rlexp.models.loaded import LoadedModel
    from rlexp.models.network import Network
    from scripts.bench.prepare import word_tokenizer

    config = Qwen3Config(
        vocab_size=case.vocabulary,
        hidden_size=case.hidden,
        intermediate_size=case.hidden,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=case.hidden,
        tie_word_embeddings=False,
    )
    module: Any = Qwen3ForCausalLM(config)
    module.to(device())
    module.get_input_embeddings().requires_grad_(False)  # whose gradient is as large as the head's
    return Network(LoadedModel(module, word_tokenizer(8), (1,), POSITIONS, "head"), autocast=torch.bfloat16 if torch.cuda.is_available() else None)


def row_of(case: LogitsCase, tokens: int) -> Any:
    """A row of few positions with so many terms."""
    from rlexp.models.network import RowTensors

    place = torch.arange(POSITIONS, device=device())
    targets = torch.randint(case.vocabulary, (tokens,), device=device())
    return RowTensors(place, place, torch.full_like(place, POSITIONS), torch.arange(tokens, device=device()) % POSITIONS, targets)


def rlexp_pass(case: LogitsCase) -> Callable[[int], int]:
    """tokens -> extra bytes of rlexp's Network."""
    network = head_network(case)

    def run(tokens: int) -> int:
        row = row_of(case, tokens)
        return extra_bytes(network.head.weight, lambda: network(row, ["logp"])["logp"])

    return run


def distillation(pipe: Connection, options: dict[str, Any], tokens: int, case: LogitsCase) -> None:
    """Sends the extra bytes of a student's head beside a teacher's. options: of SDPOConfig. The teacher's hidden states are there before, as in a step."""
    from rlexp.config.sdpo import SDPOConfig
    from rlexp.models.distillation import DISTILLATION, TEACHER, Distillation

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    network, teacher = head_network(case), head_network(case).requires_grad_(False)
    network.own_columns = {DISTILLATION: Distillation.of(SDPOConfig(**options))}

    def run(tokens: int) -> int:
        row = row_of(case, tokens)
        row.companions[TEACHER] = (teacher, torch.randn(tokens, case.hidden, device=device()))
        return extra_bytes(network.head.weight, lambda: network(row, [DISTILLATION])[DISTILLATION])

    run(WARM_UP)
    pipe.send(run(tokens))


def trl_pass(case: LogitsCase) -> Callable[[int], int]:
    """tokens -> extra bytes of TRL's chunked log-probs."""
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    weight = torch.randn(case.vocabulary, case.hidden, device=device()).requires_grad_()

    def run(tokens: int) -> int:
        hidden = torch.randn(tokens, case.hidden, device=device()).requires_grad_()
        targets = torch.randint(case.vocabulary, (tokens,), device=device())

        def logps() -> Tensor:
            with torch.autocast(device().type, torch.bfloat16, enabled=torch.cuda.is_available()):
                found = ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ("log_probs", "entropy"))
            logp: Tensor = found[0]
            return logp

        return extra_bytes(weight, logps)

    return run
