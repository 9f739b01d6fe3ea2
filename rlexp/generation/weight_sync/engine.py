"""The engine that engine_plugin registers. Imports vLLM, so only a vLLM process does this."""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine

from rlexp.generation.vllm.loading import one_thread, refresh_tied_head
from rlexp.generation.weight_sync.engine_plugin import Bucket, Mapped, unpack


class BucketEngine(WeightTransferEngine):
    """Reads buckets from a file and loads them layer by layer."""

    init_info_cls = Mapped
    update_info_cls = Bucket
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.mapped = Mapped()

    def init_transfer_engine(self, init_info: Mapped) -> None:
        """Map the trainer's file; another one when it needs a larger one, or when another trainer comes. The one that is mapped stays."""
        if init_info.path != self.mapped.path:
            init_info.open()
            self.mapped = init_info

    def start_weight_update(self) -> None:
        """Prepare vLLM's layerwise reloading: a layer is processed as soon as all of its weights are there."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load one bucket. The base class would wait for an accelerator here, which a CPU is not."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: Bucket) -> None:
        """Read and load the tensors of one bucket."""
        if update_info.path is None:
            tensors = unpack(update_info, self.mapped.memory)
        else:
            tensors = unpack(update_info, _read(update_info.path))
        with one_thread():
            self.model.load_weights(iter(tensors))

    def finish_weight_update(self) -> None:
        """Layers that got no weights get their old ones back; a tied head gets the new embeddings."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with one_thread():
            finalize_layerwise_reload(self.model, self.model_config)
            refresh_tied_head(self.model)

    def shutdown(self) -> None:
        """Let go of the trainer's file."""
        self.mapped.close()


def _read(path: str) -> bytearray:
    with open(path, "rb") as file:
        return bytearray(file.read())
