"""From a loaded model to the one that is trained: float32 head, adapter, device, recomputation."""

from __future__ import annotations

import torch

from rlexp import registry
from rlexp.config.run import RunConfig
from rlexp.distributed.skeleton import put
from rlexp.models.float32_head import use_float32_head
from rlexp.models.loaded import LoadedModel
from rlexp.models.recompute import recompute_activations


def prepared(loaded: LoadedModel, config: RunConfig, device: torch.device) -> LoadedModel:
    """The policy's model with its adapter if it has one, on its device; a skeleton stays one.

    Changes the module in place; raises UserError for what does not fit it.
    """
    if config.model.cast_lm_head_to_fp32:
        use_float32_head(loaded.module)
    loaded = registry.PEFTS.load(config.peft.name)(loaded, config.peft, seed=config.run.seed)
    put(loaded.module, device)
    if config.trainer.gradient_checkpointing:
        recompute_activations(loaded.module, config.trainer.recompute)
    return loaded
