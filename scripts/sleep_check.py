"""Does a vLLM engine in this process sleep and wake right? Needs a GPU and vLLM: python scripts/sleep_check.py

For each sleep level: weights go to the engine, it sleeps, memory is measured, the trainer's weights move, they are sent again, and the engine's
log-probs of a fixed text are compared with the trainer's each time.
"""

from __future__ import annotations

import sys

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlexp.config.vllm import VLLMGenerationConfig, vllm_installed
from rlexp.generation.vllm.generator import VLLMGenerator
from rlexp.generation.weight_sync.base import TrainerSide
from rlexp.generation.weight_sync.push import WeightSync
from rlexp.models.loaded import LoadedModel
from rlexp.models.tokenizer import character_tokenizer

SIZES = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64}
TOLERANCE = 0.5
"""of a log-prob in bfloat16"""


def model() -> LoadedModel:
    """A random model of some hundred megabytes."""
    tokenizer = character_tokenizer(512)
    torch.manual_seed(0)
    module = Qwen3ForCausalLM(Qwen3Config(vocab_size=8192, max_position_embeddings=512, tie_word_embeddings=True, **SIZES)).to("cuda", torch.bfloat16)
    return LoadedModel(module.eval(), tokenizer, (tokenizer.eos_token_id or 0,), 512, "sleep-check")


def check(level: int) -> bool:
    """One level; prints what was seen."""
    loaded = model()
    config = VLLMGenerationConfig(sleep_level=level, verify_sync="always", sync_tolerance=TOLERANCE, gpu_memory_utilization=0.2)
    generator = VLLMGenerator(config, policies={"policy": loaded}, trainer=TrainerSide(torch.bfloat16))
    sync = WeightSync(config, generator, {"policy": loaded})
    gaps, free = [], []
    for version in range(3):
        with torch.no_grad():
            for parameter in loaded.module.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.01)
        sync.announce(version)
        sync.bring()
        gaps.append(sync.difference("policy"))
        awake = torch.cuda.mem_get_info()[0]
        sync.rest()
        free.append((torch.cuda.mem_get_info()[0] - awake) / 2**30)
    sync.bring()
    again = sync.difference("policy")
    generator.close()
    right = max(*gaps, again) < TOLERANCE and min(free) > 0.1
    seen, given = ", ".join(f"{gap:.2g}" for gap in [*gaps, again]), ", ".join(f"{size:.1f}" for size in free)
    print(f"sleep level {level}: differences {seen}; GiB given back: {given}; {'ok' if right else 'WRONG'}")
    return right


def main() -> None:
    """Both levels; exit 1 when one is wrong."""
    if not torch.cuda.is_available() or not vllm_installed():
        sys.exit("a GPU and vLLM are needed (pip install 'rlexp[vllm]')")
    sys.exit(not all([check(1), check(2)]))


if __name__ == "__main__":
    main()
