"""Test components behind the real command line: torch-free registrations, as any third-party package makes them."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass

from rlexp.config.algorithm import AlgorithmConfig
from rlexp.config.fields import option
from rlexp.config.generation import SyncRolloutConfig
from rlexp.config.model import ModelConfig
from rlexp.config.reward import RewardTermConfig
from rlexp.registry import ALGORITHMS, MODELS, REWARDS, ROLLOUTS


@dataclass
class ContractConfig(AlgorithmConfig):
    """A contract algorithm."""

    name: str = "contract"
    ablate: bool = option(False, "Zero the special input: reference, teacher or value")


@dataclass
class RandomModelConfig(ModelConfig):
    """A random network of a few thousand weights."""

    name: str = "random_tiny"
    hidden_size: int = option(16, "Width", ge=4)
    context: int = option(64, "Longest sequence", ge=8)


@dataclass
class DigitsRewardConfig(RewardTermConfig):
    """Share of digits in the completion, with a little of its length, so that groups differ."""

    name: str = "digits"
    sleep: float = option(0.0, "Sleep up to so many seconds, a different time at each call", ge=0)
    reseed: bool = option(False, "Overwrite the global random states at each call")


@dataclass
class LateRolloutConfig(SyncRolloutConfig):
    """Whole groups, delivered one batch late: a stand-in for an asynchronous source."""

    name: str = "late"


shared = {"__doc__": ContractConfig.__doc__, "__module__": __name__}
for name, target in (("contract_rloo", "RLOO"), ("contract_sdpo", "SDPO"), ("contract_agents", "TwoAgents"), ("contract_agents_shared", "TwoAgentsShared")):
    config = make_dataclass(
        f"{target}Config", [("name", str, name)], bases=(ContractConfig,), namespace={"__doc__": ContractConfig.__doc__, "__module__": __name__}
    )
    ALGORITHMS.register(name, config, f"contracts.components:{target}")
MODELS.register("random_tiny", RandomModelConfig, "contracts.parts:load_model")
REWARDS.register("digits", DigitsRewardConfig, "contracts.parts:Digits")
ROLLOUTS.register("late", LateRolloutConfig, "contracts.parts:LateSource")
