"""Memory of one device by part and phase: what the config says, with the update measured on fake tensors."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, PretrainedConfig

from rlexp.algorithms.base import Algorithm
from rlexp.config.generation import NativeGenerationConfig, TransformersGenerationConfig
from rlexp.config.model import HubModelConfig
from rlexp.config.reward import ModelRewardConfig
from rlexp.config.run import RunConfig
from rlexp.config.strategy import ShardedStrategyConfig
from rlexp.config.training import AdamWConfig, OptimizerConfig, SGDConfig
from rlexp.generation.base import sampling_from
from rlexp.models.adapters import REFERENCE
from rlexp.models.hub import context_of
from rlexp.models.network import Network
from rlexp.models.skeleton import architecture_of, skeleton, tokenizer_of
from rlexp.planning import sampling
from rlexp.planning.layout import Layout, layout_of, prompts_of, row_of
from rlexp.planning.update import Peak, Wanted, update_peak
from rlexp.rewards.model import classifier_architecture, empty_classifier

GENERATION, UPDATE, OPTIMIZER = "generation", "update", "optimizer step"
PHASES = (GENERATION, UPDATE, OPTIMIZER)
SHALLOW, DEEP = (2, 4), 8
"""layers of the networks that stand for one with more than so many"""
PROGRAM = 6 * 2**20
"""what is none of the tensors counted here: tokenizer, tasks, rollouts, buffers of libraries. Seen with the default experiment on a CPU"""


@dataclass(frozen=True)
class Device:
    """What is planned for. bytes: its memory, None: unknown."""

    cuda: bool
    bytes: int | None = None


@dataclass(frozen=True)
class Part:
    """One kind of memory. bytes: by phase; a phase that is not there has none of it."""

    name: str
    bytes: dict[str, int]
    note: str

    @property
    def most(self) -> int:
        """In the phase where it is largest."""
        return max(self.bytes.values(), default=0)


@dataclass(frozen=True)
class Memory:
    """The plan of one device."""

    config: RunConfig
    device: Device
    layout: Layout
    parts: list[Part]
    loaded: int
    """host memory of a process that loads whole models until their parts are on the devices (fsdp2: of rank 0 alone); 0: none of its own"""

    def of(self, phase: str) -> int:
        """Bytes of a phase."""
        return sum(part.bytes.get(phase, 0) for part in self.parts)

    @property
    def phase(self) -> str:
        """The phase that needs most."""
        return max(PHASES, key=self.of)

    @property
    def total(self) -> int:
        """Bytes of that phase."""
        return self.of(self.phase)


@dataclass(frozen=True)
class Weights:
    """Numbers of a network's weights."""

    count: int
    bytes: int
    trained: int
    trained_bytes: int
    layer: int
    """weights of the largest decoder layer"""
    rest: int
    """weights outside of the decoder layers: embeddings, head, last norm"""
    head: int
    """weights of the head"""
    width: int
    """bytes of one trained weight"""


def weights_of(network: Network) -> Weights:
    """Counted once where tied."""
    parameters = list(network.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    layers = max((part for part in network.causal.modules() if isinstance(part, nn.ModuleList)), key=len, default=nn.ModuleList())
    sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    count = sum(parameter.numel() for parameter in parameters)
    return Weights(
        count=count,
        bytes=sum(_size(parameter) for parameter in parameters),
        trained=sum(parameter.numel() for parameter in trained),
        trained_bytes=sum(_size(parameter) for parameter in trained),
        layer=max(sizes, default=0),
        rest=count - sum(sizes),
        head=network.head.weight.numel(),
        width=max((parameter.element_size() for parameter in trained), default=4),
    )


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def plan_memory(config: RunConfig, algorithm: Algorithm, device: Device, prompt_tokens: int | None = None) -> Memory:
    """prompt_tokens: the longest prompt, where the user knows better. Raises UserError when the model cannot be planned or a rollout fits no row."""
    architecture = architecture_of(config.model)
    context = min(context_of(architecture), getattr(config.generation, "max_model_length", None) or 2**62)
    prompts = prompts_of(config, algorithm, tokenizer_of(config.model), context, prompt_tokens)
    layout = layout_of(config, prompts, config.cluster.processes, context)
    with FakeTensorMode(allow_non_fake_inputs=True):
        network = _network(config, architecture, device)
        weights = weights_of(network)
        peak = _update(config, algorithm, layout, network, device)
    parts = [
        *_held(config, algorithm, weights, device),
        *sampling.parts(config, layout, architecture, weights.bytes, device.cuda, device.bytes),
        *_updated(config, weights, peak, device),
    ]
    made = [Part(name, {phase: size for phase, size in by_phase.items() if size}, note) for name, by_phase, note in parts]
    whole = len(algorithm.networks) * weights.bytes + _copies(config, algorithm, weights) + _scorers(config)
    loaded = whole if isinstance(config.strategy, ShardedStrategyConfig) else 0
    return Memory(config, device, layout, [part for part in made if part.bytes], loaded)


def _network(config: RunConfig, architecture: PretrainedConfig, device: Device) -> Network:
    """As rlexp.build makes it. A GPU's kernels are stood in for by the CPU's, which keep the same tensors."""
    attention = config.model.attention
    if device.cuda:
        attention = {"auto": "sdpa", "flex": "tiles", "varlen": "tiles"}.get(attention, attention)
    network = Network(
        skeleton(config, architecture),
        temperature=sampling_from(config.generation).temperature,
        chunk=config.trainer.logits_chunk,
        autocast=torch.bfloat16 if _bf16(config, device) else None,
        attention=attention,
    )
    if isinstance(config.strategy, ShardedStrategyConfig) and _bf16(config, device):
        _widen(network)
    return network


def _widen(network: Network) -> None:
    """A sharded strategy keeps trained weights in at least float32 where products are in bfloat16."""
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))


def _bf16(config: RunConfig, device: Device) -> bool:
    """Whether matrix products are in bfloat16."""
    return config.trainer.precision == "bf16" or (config.trainer.precision == "auto" and device.cuda)


def _update(config: RunConfig, algorithm: Algorithm, layout: Layout, network: Network, device: Device) -> Peak:
    """Of the whole network; of a deep one, where all gradients exist and each layer adds as much as the one before, from two shallow ones."""
    (name, *_) = algorithm.networks
    beside = algorithm.needs.beside
    row, terms = row_of(layout, beside, name)
    wanted = Wanted(sorted(algorithm.needs.columns[name]), sorted(beside), algorithm.own_columns)
    sharded = isinstance(config.strategy, ShardedStrategyConfig)
    again = layout.micro_batches > 1

    def of(some: Network) -> Peak:
        shares = {"gradient_share": 1 / layout.ranks if sharded else 1.0, "copy_share": 0.0 if sharded else 1.0}
        return update_peak(some, row, terms, wanted, again=again, **shares)

    architecture = network.causal.config
    layers = int(getattr(architecture, "num_hidden_layers", 0))
    if not again or layers <= DEEP:
        return of(network)
    few, more = (of(_network(config, _shallow(architecture, depth), device)) for depth in SHALLOW)
    slope = (layers - SHALLOW[1]) / (SHALLOW[1] - SHALLOW[0])
    low, high = dataclasses.astuple(few), dataclasses.astuple(more)
    return Peak(*(int(last + slope * (last - first)) for first, last in zip(low, high, strict=True)))


def _shallow(architecture: PretrainedConfig, layers: int) -> PretrainedConfig:
    """The same with fewer layers."""
    made: Any = copy.deepcopy(architecture)
    made.num_hidden_layers = layers
    if getattr(made, "layer_types", None):
        made.layer_types = made.layer_types[:layers]
    return made


Parts = list[tuple[str, dict[str, int], str]]


def _held(config: RunConfig, algorithm: Algorithm, weights: Weights, device: Device) -> Parts:
    """What is there all the time."""
    networks, share = len(algorithm.networks), _share(config)
    copies = _copies(config, algorithm, weights)
    states, state_note = _states(config.optimizer)
    found: Parts = [
        ("parameters", _always(networks * weights.bytes // share), f"{_millions(weights.count)} in {config.model.dtype}{_shared(share)}"),
        ("optimizer", _always(networks * states * weights.trained_bytes // share), f"{state_note} of {_millions(weights.trained)} weights"),
        ("companions", _always(copies // share), ", ".join(sorted(algorithm.needs.companions - algorithm.live_companions))),
    ]
    if scorers := _scorers(config):
        found.append(("reward models", _always(scorers // share), f"float32{_shared(share)}; what scoring takes besides is not counted"))
    if config.strategy.name == "ddp":
        found.append(("gradient buckets", _always(networks * weights.trained_bytes), "ddp exchanges gradients in buffers of its own"))
    if not device.cuda:
        found.append(("program", _always(PROGRAM), "tokenizer, tasks, rollouts, libraries"))
    return found


def _updated(config: RunConfig, weights: Weights, peak: Peak, device: Device) -> Parts:
    """What exists in the update and in the optimizer's step."""
    share = _share(config)
    gradients = {UPDATE: peak.gradients // share, OPTIMIZER: weights.trained_bytes // share}
    found: Parts = [
        ("gradients", gradients, "those that exist when the update needs most; all of them in the optimizer's step"),
        ("activations", {UPDATE: peak.activations}, _recomputed(config)),
        ("logits", {UPDATE: peak.logits}, f"chunks of {config.trainer.logits_chunk} terms"),
    ]
    if share > 1:
        found.append(_gathered(config, weights, device))
    else:
        found.append(("autocast copies", {UPDATE: peak.copies}, "weights in bfloat16"))
    return found


def _gathered(config: RunConfig, weights: Weights, device: Device) -> tuple[str, dict[str, int], str]:
    """Whole weights that a rank holds for a while under a sharded strategy, and their whole gradients.

    In an update: embeddings, head and their gradients, the layer at work and the one fetched ahead, a layer's gradient and its float32 sum.
    While the trainer's own model samples: all weights, or (strategy.gather_for_generation=false) embeddings, head and two layers.
    """
    narrow = 2 if _bf16(config, device) else weights.width
    outside, layers = weights.rest * weights.width, 2 * narrow * weights.layer
    casts = narrow * weights.head if narrow < weights.width else 0
    found = {UPDATE: 2 * outside + casts + layers + (narrow + 4) * weights.layer}
    if isinstance(config.generation, (NativeGenerationConfig, TransformersGenerationConfig)):
        assert isinstance(config.strategy, ShardedStrategyConfig)
        found[GENERATION] = outside + (narrow * (weights.count - weights.rest) if config.strategy.gather_for_generation else layers)
    return "gathered weights", found, "embeddings, head and two layers at once, with gradients"


def _share(config: RunConfig) -> int:
    """Ranks that parameters, gradients and optimizer are spread over."""
    return config.cluster.processes if isinstance(config.strategy, ShardedStrategyConfig) else 1


def _shared(share: int) -> str:
    return f", spread over {share} ranks" if share > 1 else ""


def _always(size: int) -> dict[str, int]:
    return dict.fromkeys(PHASES, size)


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M"


def _recomputed(config: RunConfig) -> str:
    if not config.trainer.gradient_checkpointing:
        return "all kept for the backward"
    return "inputs of layers kept, the rest computed again" if config.trainer.recompute == "full" else "products and attention kept, the rest computed again"


def _states(config: OptimizerConfig) -> tuple[int, str]:
    """Numbers per trained weight that the optimizer keeps."""
    if isinstance(config, SGDConfig):
        return (1, "momentum") if config.momentum else (0, "nothing")
    return 2, "two moments" if isinstance(config, AdamWConfig) else "two numbers (assumed)"


def _copies(config: RunConfig, algorithm: Algorithm, weights: Weights) -> int:
    """Bytes of all networks that are forwarded and not trained."""
    return sum(_companion(config, algorithm, name, weights) for name in algorithm.needs.companions)


def _companion(config: RunConfig, algorithm: Algorithm, name: str, weights: Weights) -> int:
    """Bytes of a network that is forwarded and not trained."""
    if name in algorithm.live_companions:
        return 0
    if name in algorithm.companion_paths:
        return _other(config, algorithm.companion_paths[name])
    if config.peft.name == "none":
        return weights.bytes
    moves = algorithm.companion_moves.get(name, (0.0, 1))[0] > 0
    return weights.trained_bytes if moves or (name == REFERENCE and getattr(config.peft, "path", None)) else 0


def _scorers(config: RunConfig) -> int:
    """Bytes of the reward models. Call it outside of what is measured."""
    terms = [term for term in config.reward.terms.values() if isinstance(term, ModelRewardConfig)]
    architectures = [classifier_architecture(term) for term in terms]
    with FakeTensorMode():
        modules = [empty_classifier(term, architecture) for term, architecture in zip(terms, architectures, strict=True)]
    return sum(_size(parameter) for module in modules for parameter in module.parameters())


def _other(config: RunConfig, path: str) -> int:
    """Bytes of another model. Call it outside of what is measured."""
    architecture: Any = architecture_of(HubModelConfig(path=path))
    with FakeTensorMode():
        module = AutoModelForCausalLM.from_config(architecture, dtype=getattr(torch, config.model.dtype))
    return sum(_size(parameter) for parameter in module.parameters())
