"""One vLLM engine in this process, and nothing that rlexp knows about rollouts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlexp.config.errors import UserError
from rlexp.generation.vllm import loading
from rlexp.generation.weight_sync.fingerprint import Fingerprint

Output = Any
"""vllm.outputs.RequestOutput"""


class Engine:
    """vLLM without a server and without processes of its own.

    It starts with random weights: load some before anything is sampled. arguments: of vllm's EngineArgs. classes: of the trainer's modules, which
    vLLM must leave alone. Raises UserError for what vLLM refuses.
    """

    def __init__(self, arguments: Mapping[str, Any], classes: Iterable[type] = ()) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the model must be in this process
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its warnings are about itself, and many
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self.guest = torch.distributed.is_initialized()
        """whether the process group is the trainer's"""
        if not self.guest:  # vLLM would make one with a store that listens on every network of the machine
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
        with _torch_as_it_was(), _classes_as_they_were(classes):
            try:
                self.engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
            except (ValueError, TypeError, NotImplementedError) as error:
                raise UserError(f"vLLM refuses the engine: {_first_line(error)}; see generation.engine_kwargs and generation.max_model_length") from error
        self.number = 0

    # sampling

    def run(self, requests: Sequence[tuple[Sequence[int], Any]], lora: Any = None) -> Iterator[tuple[int, Output]]:
        """Sample. requests: (token ids, SamplingParams). Yields (place, output) of each as it is complete, in the order they end."""
        places: dict[str, int] = {}
        for place, (ids, parameters) in enumerate(requests):
            self.number += 1
            self.engine.add_request(str(self.number), {"prompt_token_ids": list(ids)}, parameters, lora_request=lora)
            places[str(self.number)] = place
        try:
            while self.engine.has_unfinished_requests():
                for output in self.engine.step():
                    if output.finished:
                        yield places.pop(output.request_id), output
        finally:
            if places:  # whoever asked stopped listening, or a step failed
                self.engine.abort_request(list(places))

    # weights

    def load(self, tensors: Iterator[tuple[str, Tensor]]) -> None:
        """Load tensors by their Hugging Face names; a tied head is not refreshed."""
        runner = self._worker.model_runner
        device = runner.device
        with self._as_current():
            loading.load(runner.get_model(), runner.model_config, ((name, tensor.to(device)) for name, tensor in tensors), refresh_head=False)

    def refresh_tied_head(self) -> None:
        """See rlexp.generation.vllm.loading.refresh_tied_head."""
        with self._as_current(), loading.one_thread():
            loading.refresh_tied_head(self._worker.model_runner.get_model())

    def reset_prefix_cache(self) -> bool:
        """Forget keys and values of earlier prompts, which older weights made. False when something still runs."""
        return bool(self.engine.reset_prefix_cache())

    def set_version(self, version: int) -> None:
        """Stamp the weights."""
        self.engine.set_weight_version(str(version))

    def version(self) -> int:
        """The stamp; -1 when there is none."""
        text = str(self.engine.get_weight_version())
        return int(text) if text.lstrip("-").isdigit() else -1

    def fingerprints(self) -> dict[str, Fingerprint]:
        """See rlexp.generation.vllm.loading.fingerprints."""
        with self._as_current():
            return loading.fingerprints(self._worker.model_runner.get_model())

    def adapter(self, name: str, number: int, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
        """A LoRA adapter to sample with: vLLM's LoRARequest. number: a new one for new weights."""
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest

        with tempfile.TemporaryDirectory(prefix="rlexp_adapter_") as folder:
            save_file({key: value.contiguous().cpu() for key, value in tensors.items()}, Path(folder) / "adapter_model.safetensors")
            write_adapter_settings(settings, Path(folder) / "adapter_config.json")
            request = LoRARequest(f"{name}-{number}", number, folder)
            self.engine.add_lora(request)
        return request

    def drop_adapter(self, number: int) -> None:
        """Forget an adapter."""
        self.engine.remove_lora(number)

    # memory

    def sleep(self, level: int) -> None:
        """Give the device's memory back: 1 keeps the weights in the host's memory, 2 drops them."""
        self.engine.sleep(level)

    def wake(self, tags: list[str]) -> None:
        """Take back the memory of weights or kv_cache."""
        self.engine.wake_up(tags)

    def close(self) -> None:
        """End it and free its memory. The trainer's process group stays, which vLLM would destroy with its own."""
        destroy = torch.distributed.destroy_process_group
        if self.guest:
            torch.distributed.destroy_process_group = lambda *_: None
        try:
            self.engine.engine_core.shutdown()
        finally:
            torch.distributed.destroy_process_group = destroy

    @property
    def _worker(self) -> Any:
        return self.engine.model_executor.driver_worker.worker

    def _as_current(self) -> Any:
        from vllm.config import set_current_vllm_config

        return set_current_vllm_config(self.engine.vllm_config)


@contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Undo what vLLM's start changes for the whole process: the number of threads, and on the CPU the function that sets it."""
    threads, setter = torch.get_num_threads(), torch.set_num_threads
    default = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_num_threads = setter
        torch.set_num_threads(threads)
        torch.set_default_dtype(default)


@contextmanager
def _classes_as_they_were(classes: Iterable[type]) -> Iterator[None]:
    """Undo what vLLM does to transformers' classes with model_impl=transformers: a base and a __call__ that the trainer's own model cannot have."""
    before = {cls: (cls.__bases__, dict(cls.__dict__)) for cls in set(classes)}
    try:
        yield
    finally:
        for cls, (bases, attributes) in before.items():
            if cls.__bases__ == bases:
                continue
            cls.__bases__ = bases
            for name in set(cls.__dict__) - set(attributes):
                delattr(cls, name)
            for name, value in attributes.items():
                if cls.__dict__.get(name) is not value and name not in ("__dict__", "__weakref__"):
                    setattr(cls, name, value)


def write_adapter_settings(settings: Mapping[str, Any], path: Path) -> None:
    """adapter_config.json, from a peft config as a dict."""
    import json

    def plain(value: object) -> object:
        return sorted(value) if isinstance(value, (set, frozenset)) else str(value)

    path.write_text(json.dumps(dict(settings), default=plain))


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
