"""Inside an engine's process: named weights into vLLM's model, and what the model then computes with.

Nothing of the trainer is imported here, so that a server's worker can use it too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rlexp.generation.weight_sync import fingerprint
from rlexp.generation.weight_sync.fingerprint import Fingerprint


@contextmanager
def one_thread() -> Iterator[None]:
    """Copy and pack weights on a CPU without sharing each matrix among threads, which wait for one another wherever a core is busy with something else.

    vLLM replaces torch.set_num_threads in its workers; this is the function below it.
    """
    before = torch.get_num_threads()
    torch._C.set_num_threads(1)
    try:
        yield
    finally:
        torch._C.set_num_threads(before)


@torch.no_grad()
def load(model: Any, model_config: Any, tensors: Iterable[tuple[str, Tensor]], refresh_head: bool = True) -> None:
    """Load tensors by their Hugging Face names, layer by layer, in place; layers that get none stay as they are.

    The plain `load_weights` fails on the CPU, whose linear layers keep their weights as packed kernels only. refresh_head: False leaves out the
    repair of a tied head, for those who load in several pieces and call `refresh_tied_head` after the last.
    """
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    # layers that were sent nothing are meant to stay, which vLLM warns of one by one at every sync
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
    with one_thread():
        initialize_layerwise_reload(model)
        model.load_weights(iter(tensors))
        finalize_layerwise_reload(model, model_config)
        if refresh_head:
            refresh_tied_head(model)


@torch.no_grad()
def refresh_tied_head(model: Any) -> bool:
    """Pack the output head again from the embeddings it is tied to; returns whether there is such a head.

    On the CPU vLLM keeps the packed head of before the reload: it gets no weights of its own, so nothing packs it again.
    """
    for owner in model.modules():
        head, config = getattr(owner, "lm_head", None), getattr(owner, "config", None)
        if head is None or not getattr(config, "tie_word_embeddings", False) or not hasattr(head, "quant_method"):
            continue
        embeddings = _embeddings(owner)
        if embeddings is None or embeddings is head:
            continue
        head.weight = embeddings.weight
        head.quant_method.process_weights_after_loading(head)
        return True
    return False


@torch.no_grad()
def fingerprints(model: Any) -> dict[str, Fingerprint]:
    """`fingerprint.of` each weight as the model computes with it, by its Hugging Face name; quantised and sharded ones are left out."""
    from vllm.distributed import get_tensor_model_parallel_world_size

    found: dict[str, Fingerprint] = {}
    if get_tensor_model_parallel_world_size() > 1:
        return found
    fused = getattr(model, "packed_modules_mapping", None) or {}
    for name, layer in model.named_modules():
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, Tensor) or list(layer.children()):
            continue
        parts = list(_parts(name, layer, fused))
        values = _product(layer, weight, name.endswith("lm_head"))
        if values is None:
            continue
        sizes = _sizes(layer, len(parts), len(values))
        for part, value in zip(parts, values.split(sizes), strict=True):
            found[f"{part}.weight"] = fingerprint.of_product(value)
    return found


def _embeddings(owner: Any) -> Any:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    return next((part for part in owner.modules() if isinstance(part, VocabParallelEmbedding) and not isinstance(part, ParallelLMHead)), None)


def _parts(name: str, layer: nn.Module, fused: dict[str, list[str]]) -> Iterator[str]:
    """Hugging Face names of the matrices that a layer holds."""
    parent, _, last = name.rpartition(".")
    for part in fused.get(last, [last]):
        yield f"{parent}.{part}" if parent else part


def _sizes(layer: Any, parts: int, rows: int) -> list[int]:
    """Rows of each of the fused matrices."""
    if parts == 1:
        return [rows]
    sizes = list(getattr(layer, "output_sizes", []))
    return sizes if len(sizes) == parts and sum(sizes) == rows else [rows // parts] * parts


def _product(layer: Any, weight: Tensor, head: bool) -> Tensor | None:
    """The weight times the fixed direction, through the layer's own kernel if it is a linear one. Rows that only pad the vocabulary are left out."""
    columns = getattr(layer, "input_size", None) or getattr(layer, "embedding_dim", None)
    method = getattr(layer, "quant_method", None)
    if weight.dim() == 1 and weight.numel():
        return fingerprint.product(weight)
    if columns is None or method is None or not hasattr(method, "apply"):
        return None
    if hasattr(layer, "embedding_dim") and not head:
        values = fingerprint.product(weight)
    else:
        kernel = weight.dtype
        values = method.apply(layer, fingerprint.direction(columns).to(weight.device, kernel)[None], None)[0].float()
    rows = getattr(layer, "org_vocab_size", None)
    return values[:rows] if rows else values
