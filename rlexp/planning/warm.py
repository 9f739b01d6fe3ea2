"""Everything that a run loads once, loaded: modules, and the code of kernels, which the first call of each brings into memory."""

from __future__ import annotations

import importlib

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rlexp import registry
from rlexp.config.model import TinyModelConfig
from rlexp.config.run import RunConfig
from rlexp.generation.inference import inference
from rlexp.generation.native import NativeGenerator
from rlexp.models.loaded import LoadedModel
from rlexp.models.network import Network
from rlexp.models.tiny import CONTEXT, architecture
from rlexp.models.tokenizer import character_tokenizer
from rlexp.planning.layout import Layout, Prompts, row_of
from rlexp.planning.update import Wanted, update_peak
from rlexp.records.request import Request

LAYOUT = Layout(Prompts(8, "made up"), completion=4, rollouts=8, ranks=1, samples=8, micro_batches=1, row=8, generations=4)


def warm_up(config: RunConfig) -> None:
    """One update and a few sampled tokens of a network of a few thousand weights."""
    importlib.import_module("rlexp.build")
    for group, name in ((registry.MODELS, config.model.name), (registry.DATA, config.data.name), (registry.PEFTS, config.peft.name)):
        group.load(name)
    tokenizer = character_tokenizer(CONTEXT)
    module = AutoModelForCausalLM.from_config(architecture(TinyModelConfig(hidden_size=32, layers=1, heads=2), tokenizer)).eval()
    loaded = LoadedModel(module, tokenizer, (), CONTEXT, "warm")
    network = Network(loaded, chunk=16)
    network.check()
    row, terms = row_of(LAYOUT, frozenset(), "policy")
    row.row.ids_T %= len(tokenizer)
    update_peak(network, row, terms, Wanted(["logp"], [], {}), again=True, gradient_share=1.0, copy_share=1.0)
    parameters = list(network.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    registry.OPTIMIZERS.load(config.optimizer.name)(config.optimizer, parameters).step()
    generator = NativeGenerator(registry.GENERATORS.config_for("native")(), policies={"policy": loaded})
    with inference(module):
        generator.sample_wave([Request(np.arange(5 + number % 2) + 5, key=number, max_tokens=4) for number in range(4)])
