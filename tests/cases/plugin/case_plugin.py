"""What the user cases need beside the shipped components: models and generators whose numbers are known by hand. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

import scripted  # noqa: F401 (registers generation=scripted)

from rlexp.config.algorithm import DAPOLossConfig
from rlexp.config.fields import REQUIRED, option
from rlexp.config.generation import GenerationConfig
from rlexp.config.model import ModelConfig
from rlexp.registry import GENERATORS, LOSSES, MODELS


@dataclass
class TableModelConfig(ModelConfig):
    """A model whose next-token distribution is a table (tests/table_model.py)."""

    name: str = "table"
    path: str = option(REQUIRED, "JSON file with the arguments of table_model")


@dataclass
class EchoGenerationConfig(GenerationConfig):
    """Answers each prompt with its last characters, after a pause of its own, as a server does."""

    name: str = "echo"
    characters: int = option(2, "How many characters", ge=1)
    pause: float = option(0.05, "Longest pause in seconds", ge=0)


@dataclass
class ProbedLossConfig(DAPOLossConfig):
    """DAPO that also logs the extremes of the ratio, or REINFORCE weighted by the ratio to the sampler."""

    name: str = "probed"
    against: str = option("old", "What the ratio is taken to", choices=("old", "sampler"))


MODELS.register("table", TableModelConfig, "case_parts:load_table")
GENERATORS.register("echo", EchoGenerationConfig, "case_parts:EchoGenerator")
LOSSES.register("probed", ProbedLossConfig, "case_parts:probed")
