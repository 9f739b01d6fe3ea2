"""generation=vllm: vLLM in the trainer's process (rows GRPO-189...199).

The engine holds a copy of the weights; `WeightSync` brings it up to date and this file's target does one transfer. Requests of a wave that have
the same prompt go as one, so that it is prefilled once; each completion still has a seed of its own.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlexp.config.errors import UserError
from rlexp.config.vllm import VLLMGenerationConfig, lora_rank
from rlexp.generation.base import BadPrompt, Done, Policy, free_form, sampling_from
from rlexp.generation.batches import ModelGenerator
from rlexp.generation.vllm import sampling
from rlexp.generation.vllm.engine import Engine
from rlexp.generation.vllm.folder import check_model, write_model_folder
from rlexp.generation.vllm.memory import ROWS, need_of
from rlexp.generation.weight_sync.base import PAUSED, Adapter, Named, Score, SyncError, TrainerSide
from rlexp.generation.weight_sync.fingerprint import Fingerprint
from rlexp.records.request import Request
from rlexp.records.turn import Turn

log = logging.getLogger(__name__)


class VLLMGenerator(ModelGenerator):
    """An engine for each policy, in this process. Raises UserError for what vLLM or the device cannot do."""

    provides = frozenset({"candidates"})
    copies = 1

    def __init__(
        self, config: VLLMGenerationConfig, *, policies: Mapping[str, Policy], trainer: TrainerSide, engines: Mapping[str, Engine] | None = None
    ) -> None:
        """engines: made already (tests); None starts one for each policy."""
        super().__init__(policies)
        self.config = config
        self.dtype = engine_dtype(config.dtype, trainer.dtype)
        self.context = min([policy.context for policy in policies.values()] + [config.max_model_length or 2**62])
        self.ranks_per_engine = config.tensor_parallel_size
        self.on_cpu = next(next(iter(policies.values())).module.parameters()).device.type == "cpu"
        if config.sleep_level and self.on_cpu and engines is None:
            level = f"generation.sleep_level={config.sleep_level}"
            raise UserError(f"{level} needs a GPU: vLLM's CPU engine cannot give its memory back; set generation.sleep_level=0")
        if engines is None:
            if self.on_cpu:
                for policy in policies.values():
                    check_model(policy, config)
            from vllm import SamplingParams

            sampling.check_arguments([name for name, _ in sampling_from(config).extra], SamplingParams.__struct_fields__)
            self._folder = tempfile.TemporaryDirectory(prefix="rlexp_vllm_")
            engines = {name: self._start(name, policy, trainer) for name, policy in policies.items()}
        self.engines = dict(engines)
        self.weights = InProcessTarget(self.engines, has_base=config.sync_lora == "adapter")

    # sampling

    def fits(self, policy: Policy, rows: int, prompt: int, completion: int) -> bool:
        """Always: the engine's own scheduler decides what runs together."""
        return True

    def check(self, request: Request) -> None:
        """Raise BadPrompt for a prompt without tokens, or one that fills the context of the model or of the engine."""
        super().check(request)
        if len(request.ids) >= self.context:
            raise BadPrompt(
                f"the prompt has {len(request.ids)} tokens and generation.max_model_length={self.context}, which leaves none to sample; "
                "raise it, or set data.overlong_prompt=drop or cut_left with data.max_prompt_length"
            )

    def sample_batch(self, policy: Policy, requests: Sequence[Request]) -> list[Turn]:
        """One turn for each request."""
        turns: dict[int, Turn] = {}
        self.stream_batch(policy, requests, turns.__setitem__)
        return [turns[place] for place in range(len(requests))]

    def stream_batch(self, policy: Policy, requests: Sequence[Request], done: Done) -> None:
        """The same turns, those of a prompt when its last completion has ended."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        groups = same_prompts(requests)
        regex = self.config.structured_outputs_regex
        structured = StructuredOutputsParams(regex=regex) if regex is not None else None
        asked = []
        for places in groups:
            first = requests[places[0]]
            fields = sampling.parameters(first.sampling, policy.eos_ids, max_tokens=first.max_tokens, seed=sampling.seed_of(first), n=len(places), regex=regex)
            fields |= {"detokenize": bool(first.sampling.stop), "output_kind": RequestOutputKind.FINAL_ONLY, "flat_logprobs": True}
            asked.append((first.ids.tolist(), SamplingParams(**fields, structured_outputs=structured)))
        name = requests[0].policy
        for number, output in self.engines[name].run(asked, self.weights.adapters.get(name)):
            for completion in output.outputs:
                place = groups[number][completion.index]
                done(place, sampling.turn_of(requests[place].ids, completion, requests[place].sampling, policy.eos_ids, self.version))

    def _clip(self, request: Request) -> Request:
        """The request with what the engine's context leaves of its max_tokens."""
        room = self.context - len(request.ids)
        return super()._clip(request if request.max_tokens <= room else dataclasses.replace(request, max_tokens=max(room, 1)))

    def score(self, policy: str, ids: Sequence[np.ndarray], top_k: int | None = None) -> list[Score]:
        """Log-probs of each sequence under the engine's weights, at temperature 1, with the top_k most probable ids of each place."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        for sequence in ids:
            if not 2 <= len(sequence) < self.context:
                raise BadPrompt(f"a text of {len(sequence)} tokens cannot be scored: it must have 2 to {self.context - 1}")
        kind = RequestOutputKind.FINAL_ONLY
        wanted = SamplingParams(max_tokens=1, prompt_logprobs=top_k or 0, temperature=1.0, seed=0, detokenize=False, flat_logprobs=True, output_kind=kind)
        asked = [(sequence.tolist(), wanted) for sequence in ids]
        found = {place: _score(output.prompt_logprobs, top_k) for place, output in self.engines[policy].run(asked, self.weights.adapters.get(policy))}
        return [found[place] for place in range(len(ids))]

    # life

    def close(self) -> None:
        """End the engines."""
        for engine in self.engines.values():
            engine.close()
        self.engines.clear()

    def _advise(self, policy: Policy) -> None:
        """Say how much of the GPU the engine could use (row GRPO-199)."""
        device = next(policy.module.parameters()).device
        share = need_of(policy.module, self.dtype).share(self.context, torch.cuda.get_device_properties(device).total_memory)
        log.info("vLLM: generation.gpu_memory_utilization=%.2f would hold the weights and %d rows of %d tokens", share, ROWS, self.context)

    def _start(self, name: str, policy: Policy, trainer: TrainerSide) -> Engine:
        folder = Path(self._folder.name) / name
        adapter = self.config.sync_lora == "adapter"
        write_model_folder(policy, folder, weights=adapter)
        arguments: dict[str, Any] = {
            "model": str(folder),
            "runner": "generate",
            "load_format": "auto" if adapter else "dummy",
            "dtype": str(self.dtype).removeprefix("torch."),
            "max_model_len": self.context,
            "model_impl": self.config.model_impl,
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": -1,
            "distributed_executor_backend": "uni",
            "enable_sleep_mode": self.config.sleep_level > 0,
            "disable_log_stats": True,
            "seed": 0,
        }
        if trainer.world > 1:  # the engine joins the trainer's processes, and takes the device of its own
            arguments |= {"distributed_executor_backend": "external_launcher", "tensor_parallel_size": self.ranks_per_engine}
            if self.on_cpu:
                arguments["worker_cls"] = "rlexp.generation.vllm.shared_worker.SharedWorker"
        if self.on_cpu:
            arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": self.config.cpu_cache_gib * 2**30} | whole_prompts(self.context)
        else:
            arguments["gpu_memory_utilization"] = self.config.gpu_memory_utilization / len(self.policies)
            self._advise(policy)
        if self.config.model_impl != "vllm":
            arguments["enforce_eager"] = True  # its compiled form would take over the class of the trainer's own model
        if adapter:
            module: Any = policy.module
            arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": lora_rank(int(module.peft_config["default"].r))}
        classes = {type(part) for part in policy.module.modules()}
        return Engine(arguments | free_form(self.config.engine_kwargs, "generation.engine_kwargs"), classes)


class InProcessTarget:
    """Weights into engines of this process. The order of a transfer: wake, load, tied head, cache, version."""

    shared = False

    def __init__(self, engines: Mapping[str, Engine], *, has_base: bool) -> None:
        self.engines, self.has_base = engines, has_base
        self.adapters: dict[str, Any] = {}
        """vLLM's LoRARequest by policy"""
        self.asleep: dict[str, int] = {}
        """sleep level by policy"""
        self._number = 0

    def receive(self, policy: str, tensors: Iterator[Named], version: int) -> None:
        """Load these tensors. Raises SyncError; what the engine then holds is unknown, so it must not sample on."""
        engine = self.engines[policy]
        try:
            slept = self.asleep.pop(policy, 0)
            if slept:
                engine.wake(["weights"])
            engine.load(tensors)
            engine.refresh_tied_head()
            if slept:
                engine.wake(["kv_cache"])
        except Exception as error:
            raise SyncError(f"weights of version {version} could not be loaded into vLLM: {type(error).__name__}: {error}", engine=PAUSED) from error
        self._stamp(engine, version)

    def receive_adapter(self, policy: str, adapter: Adapter, version: int) -> None:
        """Serve the policy with this adapter. Raises SyncError."""
        engine = self.engines[policy]
        self.wake()
        self._number += 1
        try:
            served = engine.adapter(policy, self._number, adapter.settings, adapter.tensors)
            old = self.adapters.get(policy)
            if old is not None:
                engine.drop_adapter(old.lora_int_id)
        except Exception as error:
            raise SyncError(f"the adapter of version {version} could not be served by vLLM: {type(error).__name__}: {error}", engine=PAUSED) from error
        self.adapters[policy] = served
        self._stamp(engine, version)

    def version(self) -> int:
        """The lowest of the engines' stamps."""
        return min(engine.version() for engine in self.engines.values())

    def checksums(self, policy: str) -> list[dict[str, Fingerprint]]:
        """What the engine computes with."""
        return [self.engines[policy].fingerprints()]

    def sleep(self, level: int) -> None:
        """Send the engines to sleep."""
        for policy, engine in self.engines.items():
            engine.sleep(level)
            self.asleep[policy] = level

    def wake(self) -> None:
        """Wake the engines that sleep, with the weights they had (level 1)."""
        for policy in list(self.asleep):
            del self.asleep[policy]
            self.engines[policy].wake(["weights", "kv_cache"])

    def _stamp(self, engine: Engine, version: int) -> None:
        if not engine.reset_prefix_cache():
            raise SyncError("vLLM could not forget keys and values of older weights, because something still runs", engine=PAUSED)
        engine.set_version(version)


def engine_dtype(name: str, trainer: torch.dtype) -> torch.dtype:
    """What the engine computes in; a warning when the trainer computes in another dtype. float64 is float32 to an engine."""
    own = torch.float32 if trainer == torch.float64 else trainer
    chosen: torch.dtype = own if name == "auto" else getattr(torch, name)
    if chosen != own:
        log.warning(
            "generation.dtype=%s, and the trainer computes in %s: log-probs of sampler and trainer differ by rounding; generation.dtype=auto does not",
            name,
            str(own).removeprefix("torch."),
        )
    return chosen


def whole_prompts(context: int) -> dict[str, Any]:
    """Engine arguments for a CPU: prompts are read whole. vLLM 0.32 winds a request's random generator back after a part of a prompt, which
    CPU generators cannot do ("CPU Generator does not use offset")."""
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": max(context, 4096)}


def same_prompts(requests: Sequence[Request]) -> list[list[int]]:
    """Places of requests that one request with several completions can stand for, in order of first appearance."""
    groups: dict[tuple[bytes, int], list[int]] = {}
    for place, request in enumerate(requests):
        groups.setdefault((np.asarray(request.ids, np.int64).tobytes(), request.max_tokens), []).append(place)
    return list(groups.values())


def _score(flat: Any, top_k: int | None) -> Score:
    """Of flat prompt log-probs: nothing at the first place, then the token's own and the top_k."""
    starts, ends = list(flat.start_indices)[1:], list(flat.end_indices)[1:]
    logprobs = np.array([flat.logprobs[start] for start in starts], np.float32)
    if not top_k:
        return Score(logprobs)
    ids, values = [], []
    for start, end in zip(starts, ends, strict=True):
        pairs = sorted(dict(zip(flat.token_ids[start:end], flat.logprobs[start:end], strict=True)).items(), key=lambda pair: -pair[1])[:top_k]
        ids.append([token for token, _ in pairs])
        values.append([value for _, value in pairs])
    return Score(logprobs, np.array(ids, np.int64), np.array(values, np.float32))
