"""A model folder that an engine can start from."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from rlexp.config.errors import UserError
from rlexp.config.vllm import EngineGenerationConfig
from rlexp.generation.base import Policy
from rlexp.generation.inference import causal_model
from rlexp.generation.weight_sync.tensors import PolicyTensors

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""what configs call the number of experts of a layer"""


def check_model(policy: Policy, config: EngineGenerationConfig) -> None:
    """Raise UserError for a model whose weights vLLM's CPU engine cannot be sent.

    It packs the matrices of experts when it starts, and reads new ones into what it packed: sizes do not match, or experts come out wrong.
    """
    settings = causal_model(policy.module).config.get_text_config()
    if config.sync_lora == "merged" and any(getattr(settings, name, None) for name in EXPERTS):
        raise UserError(
            f"generation={config.name} on a CPU cannot be sent the weights of a mixture of experts ({settings.model_type}): vLLM loads them at its start only; "
            "set generation=native, or use a GPU"
        )


def write_model_folder(policy: Policy, folder: Path, *, weights: bool = False) -> None:
    """Config and tokenizer of the policy. The generation config holds the EOS ids and nothing else (case S26).

    weights: False for `load_format=dummy`, where the first weight sync brings them; True writes those of the base model, for engines that
    are then sent adapters only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    causal = causal_model(policy.module)
    config = copy.deepcopy(causal.config)
    config.architectures = [type(causal).__name__]  # a model that was built, not loaded, has none
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(policy.eos_ids)}))
    if weights:
        from safetensors.torch import save_file

        base = PolicyTensors(policy.module).base()
        save_file({name: tensor.contiguous().cpu() for name, tensor in base}, folder / "model.safetensors", metadata={"format": "pt"})
