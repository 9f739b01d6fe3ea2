"""Memory of the head alone: extra bytes of its forward and backward above weights and their gradients, in a process of its own.

Both sides get hidden states and targets and give log-probs, whose sum is differentiated: rlexp through Network with the backbone
left out, TRL through the function that its patched forward calls (with the entropy that its trainer always asks for, as a metric).
"""

from __future__ import annotations

from multiprocessing.connection import Connection

import torch
from torch import Tensor

from scripts.bench.recorder import Memory
from scripts.bench.workloads import THREADS, LogitsCase

WARM_UP = 16
"""tokens of a first pass, which loads what is loaded once"""


def main(pipe: Connection, side: str, tokens: int, case: LogitsCase) -> None:
    """Sends the extra bytes. side: rlexp or trl."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    run = rlexp_pass(case) if side == "rlexp" else trl_pass(case)
    run(WARM_UP)
    pipe.send(run(tokens))


def measured(weight: Tensor, hidden: Tensor, targets: Tensor, call) -> int:  # type: ignore[no-untyped-def]
    """Peak of forward and backward above what is there before, without the gradient of the weights."""
    weight.grad = hidden.grad = None
    memory = Memory()
    memory.reset()
    call(hidden, targets).sum().backward()
    return memory.peak - weight.numel() * weight.element_size()


def given(tokens: int, case: LogitsCase, device: torch.device) -> tuple[Tensor, Tensor]:
    """Hidden states and targets."""
    hidden = torch.randn(tokens, case.hidden, device=device).requires_grad_()
    return hidden, torch.randint(case.vocabulary, (tokens,), device=device)


def rlexp_pass(case: LogitsCase):  # type: ignore[no-untyped-def]
    """tokens -> extra bytes of rlexp's Network, whose hidden states are given."""
    import numpy as np
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from rlexp.models.loaded import LoadedModel
    from rlexp.models.network import Network, RowTensors
    from scripts.bench.prepare import word_tokenizer

    config = Qwen3Config(vocab_size=case.vocabulary, hidden_size=case.hidden, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
                         num_key_value_heads=2, head_dim=case.hidden // 2, tie_word_embeddings=False)  # fmt: skip
    module = Qwen3ForCausalLM(config)
    if torch.cuda.is_available():
        module.cuda()
    loaded = LoadedModel(module, word_tokenizer(8), (1,), 64, "head")
    network = Network(loaded, autocast=torch.bfloat16 if torch.cuda.is_available() else None)
    weight = module.lm_head.weight

    def run(tokens: int) -> int:
        hidden, targets = given(tokens, case, weight.device)
        place = torch.from_numpy(np.arange(tokens)).to(weight.device)
        row = RowTensors(targets, place, place, place, targets)
        network.hidden = lambda row: hidden  # type: ignore[method-assign]
        return measured(weight, hidden, targets, lambda hidden, targets: network(row, ["logp"])["logp"])

    return run


def trl_pass(case: LogitsCase):  # type: ignore[no-untyped-def]
    """tokens -> extra bytes of TRL's chunked log-probs."""
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    weight = torch.randn(case.vocabulary, case.hidden, device=device).requires_grad_()

    def call(hidden: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ("log_probs", "entropy"))[0]

    return lambda tokens: measured(weight, *given(tokens, case, device), call)
