"""The product of losses, ratio levels, corrections and masks, and which cells of it the configuration allows."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from dataclasses import dataclass
from typing import Any

from loss_batches import LEVELS, LOSS_NAMES, OWN, OWN_RATIO, loss_config, objective, own_options
from run_configs import composed

from rlexp.config.convert import convert
from rlexp.config.correction import CorrectionConfig
from rlexp.config.run import RunConfig
from rlexp.config.validate import problems
from rlexp.losses.correction import Correction
from rlexp.losses.objective import PolicyObjective

CORRECTIONS = [
    None,
    Correction("token_truncate", None, 1.3),
    Correction("token_mask", 0.7, 1.4),
    Correction("sequence_truncate", 0.6, None),
    Correction("sequence_mask", 0.4, 2.0),
    Correction("sequence_mask", 0.8, 1.2, normalize=True),
]
MASKS: list[dict[str, Any]] = [
    {},
    {"off_policy_mask_threshold": 0.05},
    {"top_entropy_quantile": 0.4},
    {"entropy_coef": 0.2},
    {"off_policy_mask_threshold": 0.01, "top_entropy_quantile": 0.6, "entropy_coef": -0.1},
]
KL: list[dict[str, Any]] = [{}, {"beta": 0.3}, {"beta": 0.3, "bias": False}]

CLIP: list[dict[str, Any]] = [{"epsilon": 0.1, "epsilon_high": 0.5}, {"delta": 1.3}, {"epsilon_high": 0.28, "delta": 1.1}, {"epsilon": 0.05}]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "cispo": [{}, {"epsilon_high": 1.1}],
    "sapo": [{}, {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 0.7}],
    "gmpo": [{"log_epsilon": 0.1}, {"log_epsilon": 0.3, "log_epsilon_high": 0.05}],
    "dppo": [{"delta_low": 0.05}, {"delta_low": 0.1, "delta_high": 0.02}],
    "vespo": [{}, {"vespo_k_pos": 1.5, "vespo_lambda_pos": 0.5, "vespo_k_neg": 0.3, "vespo_lambda_neg": 2.5}],
    "clip_cov": [{"cov_share": 0.4, "cov_low": -0.2, "cov_high": 3.0}, {"cov_share": 1e-4, "cov_low": -9.0, "cov_high": 9.0}],
    "kl_cov": [{"cov_share": 0.4, "cov_kl_coef": 0.7}, {"cov_share": 1e-4}],
    "rloo": [{}, {"epsilon": 0.5, "epsilon_high": 2.0}],
}
"""options to try; the clip family shares one list"""


def options_of(name: str) -> list[dict[str, Any]]:
    """Options of a loss of its own that are worth a try."""
    return OPTIONS.get(name, CLIP)


@dataclass(frozen=True)
class Cell:
    """One combination. level: OWN leaves the key out. Correction and mask are numbers into the lists above."""

    name: str
    level: str
    correction_number: int
    mask_number: int

    @property
    def correction(self) -> Correction | None:
        """Weights for the sampler."""
        return CORRECTIONS[self.correction_number]

    @property
    def mask(self) -> dict[str, Any]:
        """Options of the loss that every loss has."""
        return MASKS[self.mask_number]

    def objective(self, **options: Any) -> PolicyObjective:
        """What a run with this combination would build."""
        level = own_options(self.name, importance_sampling_level=self.level)
        return objective(self.name, correction=self.correction, **level, **self.mask, **options)

    @property
    def problems(self) -> list[str]:
        """What the strict conversion and validation of a run's config say to it."""
        return list(_problems(self.name, self.level, self.correction_number, self.mask_number))


@functools.cache
def _plain_default() -> dict[str, Any]:
    return dataclasses.asdict(composed("experiment=none"))


@functools.cache
def converted(name: str, level: str) -> tuple[RunConfig, list[str]]:
    """A run's config with this loss, and the unknown keys in it: a ratio level where the loss has no such option."""
    loss = dataclasses.asdict(loss_config(name)) | ({} if level == OWN else {"importance_sampling_level": level})
    return convert({**_plain_default(), "loss": loss})


@functools.cache
def _problems(name: str, level: str, correction: int, mask: int) -> tuple[str, ...]:
    config, unknown = converted(name, level)
    if unknown:
        return tuple(unknown)
    weights = CORRECTIONS[correction]
    settings = CorrectionConfig() if weights is None else CorrectionConfig(weights.mode, weights.clip_min, weights.clip_max, weights.normalize)
    return tuple(problems(dataclasses.replace(config, loss=dataclasses.replace(config.loss, **MASKS[mask]), correction=settings)))


PRODUCT = [
    Cell(name, level, correction, mask)
    for name, level, correction, mask in itertools.product(LOSS_NAMES, (OWN, *LEVELS), range(len(CORRECTIONS)), range(len(MASKS)))
]


def allowed(name: str | None = None) -> list[Cell]:
    """The cells that a run (with this loss) may have, each once: a level that is left out is one of the others, unless the loss has no such option."""
    cells = (cell for cell in PRODUCT if name in (None, cell.name) and (cell.level == OWN) == (cell.name in OWN_RATIO))
    return [cell for cell in cells if not cell.problems]


def made_of(cell: Cell, seed: int) -> PolicyObjective:
    """The objective of a cell with a KL and options of its loss that change from cell to cell."""
    options = options_of(cell.name)
    return cell.objective(**KL[seed % len(KL)], **options[seed % len(options)])
