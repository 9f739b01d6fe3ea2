"""Weights to a launched vLLM server, by every way this machine has: exact or not, and how long a sync takes.

    python scripts/transfer_check.py                           ipc, nccl (two GPUs) and shared memory on a CUDA machine; shared memory on a CPU
    python scripts/transfer_check.py --model smollm2_135m      a real model instead of random weights
    python scripts/transfer_check.py --syncs 20 --lora 8       an adapter of rank 8 on all linear layers, sent alone

Needs vLLM. nccl puts the server on the second GPU, ipc on the same one. Exit code 1 when log-probs differ by more than generation.sync_tolerance.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlexp.config.model import LoraConfig, SmolLM2ModelConfig, TinyModelConfig
from rlexp.config.vllm_server import VLLMServerGenerationConfig
from rlexp.generation.vllm_server.generator import VLLMServerGenerator
from rlexp.generation.weight_sync.base import TrainerSide
from rlexp.generation.weight_sync.probe import TOLERANCE
from rlexp.generation.weight_sync.push import WeightSync
from rlexp.models.adapters import lora
from rlexp.models.loaded import LoadedModel
from rlexp.models.smollm2 import load as load_smollm2
from rlexp.models.tiny import load as load_tiny
from rlexp.models.tokenizer import character_tokenizer


def random_model() -> LoadedModel:
    """Random weights of about 0.1 billion parameters, tied."""
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=32_000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, head_dim=64)
    config.num_key_value_heads, config.max_position_embeddings, config.tie_word_embeddings = 4, 1024, True
    config.eos_token_id = config.bos_token_id = None
    return LoadedModel(Qwen3ForCausalLM(config).eval(), character_tokenizer(1024), (), 1024, "random")


def model(name: str, rank: int, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """The policy."""
    if name == "random":
        loaded = random_model()
    else:
        loaded = load_smollm2(SmolLM2ModelConfig(), seed=0) if name == "smollm2_135m" else load_tiny(TinyModelConfig(), seed=0)
    loaded.module.to(device, dtype)
    return lora(loaded, LoraConfig(r=rank), seed=0) if rank else loaded


def check(transfer: str, loaded: LoadedModel, dtype: torch.dtype, syncs: int, adapter: bool, folder: Path) -> dict[str, Any]:
    """Seconds and bytes of the first sync and of the later ones, and the largest difference of a log-prob."""
    eager: dict[str, Any] = {"enforce_eager": True, "max_num_seqs": 8}
    config = VLLMServerGenerationConfig(
        launch=True,
        timeout=900.0,
        weight_transfer=transfer,
        engine_kwargs=eager,
        max_model_length=min(512, loaded.context),
        gpu_memory_utilization=0.3,
        devices="1" if transfer == "nccl" else None,
        sync_lora="adapter" if adapter else "merged",
        verify_sync="never",
    )
    began = time.perf_counter()
    generator = VLLMServerGenerator(config, policies={"policy": loaded}, trainer=TrainerSide(dtype, folder=folder))
    started = time.perf_counter() - began
    sync = WeightSync(config, generator, generator.policies)
    seconds, sent, worst = [], [], 0.0
    try:
        for version in range(syncs):
            with torch.no_grad():
                for parameter in loaded.module.parameters():
                    if parameter.requires_grad:
                        parameter.add_(1e-3 * torch.randn_like(parameter))
            sync.announce(version)
            seconds.append(sync.bring())
            sent.append(generator.fleet.target.bytes_sent)
            worst = max(worst, sync.difference("policy"))
    finally:
        generator.close()
    later = sorted(seconds[1:] or seconds)
    return {"transfer": transfer, "start_s": started, "first_s": seconds[0], "sync_s": later[len(later) // 2], "mib": sent[-1] / 2**20, "difference": worst}


def main() -> None:
    """All that this machine can do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random", choices=("random", "tiny", "smollm2_135m"))
    parser.add_argument("--syncs", type=int, default=5)
    parser.add_argument("--lora", type=int, default=0, help="rank of an adapter that is sent alone; 0: all weights are trained and sent")
    parser.add_argument("--transfers", help="comma-separated; default: all that this machine has")
    arguments = parser.parse_args()
    gpus = torch.cuda.device_count()
    device = torch.device("cuda" if gpus else "cpu")
    dtype = torch.bfloat16 if gpus else torch.float32
    possible = [*(["ipc"] if gpus else []), *(["nccl"] if gpus > 1 else []), "shared_memory"]
    off = False
    for transfer in arguments.transfers.split(",") if arguments.transfers else possible:
        with tempfile.TemporaryDirectory() as folder:
            loaded = model(arguments.model, arguments.lora, device, dtype)
            found = check(transfer, loaded, dtype, arguments.syncs, arguments.lora > 0, Path(folder))
        print(json.dumps({name: round(value, 6) if isinstance(value, float) else value for name, value in found.items()}), flush=True)
        off |= not found["difference"] <= TOLERANCE[str(dtype).removeprefix("torch.")]
    sys.exit(off)


if __name__ == "__main__":
    main()
