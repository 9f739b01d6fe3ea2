"""generation=scoring: the native sampler that also tells the log-probs of given ids, as a server does. Importing this registers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from rlexp import registry
from rlexp.config.generation import NativeGenerationConfig
from rlexp.generation.native import NativeGenerator
from rlexp.generation.weight_sync.base import Score


@dataclass
class ScoringGenerationConfig(NativeGenerationConfig):
    """The native sampler with scores (tests only)."""

    scores: ClassVar[bool] = True
    name: str = "scoring"


class ScoringGenerator(NativeGenerator):
    """Scores each sequence alone."""

    broken = False
    """whether a log-prob is missing"""

    @torch.no_grad()
    def score(self, policy: str, ids: Sequence[np.ndarray], top_k: int | None = None) -> list[Score]:
        """By a plain forward."""
        made = []
        for sequence in ids:
            logp = self.policies[policy].module.eval()(input_ids=torch.tensor(sequence)[None]).logits[0, :-1].log_softmax(-1)
            found = logp.gather(1, torch.tensor(sequence)[1:, None])[:, 0].float().numpy()
            best = None if top_k is None else logp.topk(top_k)
            made.append(Score(found, *(() if best is None else (best.indices.numpy(), best.values.float().numpy()))))
            if self.broken:
                made[-1].logprobs[-1] = np.nan
        return made


registry.GENERATORS.register("scoring", ScoringGenerationConfig, "scoring:ScoringGenerator")
