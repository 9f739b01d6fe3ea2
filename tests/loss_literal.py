"""The objective read literally from the papers: loops over rollouts and tokens, Python floats, derivatives by hand-written rules.

It shares nothing with the package: no tensors, no rlexp. A number with a derivative is a `Dual`; `stop` cuts the derivative off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


class Dual:
    """A number and its derivatives by (kind, index of the token)."""

    def __init__(self, value: float, slopes: dict[tuple[str, int], float] | None = None) -> None:
        self.value, self.slopes = value, slopes or {}

    @staticmethod
    def _chain(value: float, *parts: tuple[Dual, float]) -> Dual:
        slopes: dict[tuple[str, int], float] = {}
        for other, factor in parts:
            for key, slope in other.slopes.items():
                slopes[key] = slopes.get(key, 0.0) + factor * slope
        return Dual(value, slopes)

    def __add__(self, other: Dual | float) -> Dual:
        other = other if isinstance(other, Dual) else Dual(other)
        return self._chain(self.value + other.value, (self, 1.0), (other, 1.0))

    def __mul__(self, other: Dual | float) -> Dual:
        other = other if isinstance(other, Dual) else Dual(other)
        return self._chain(self.value * other.value, (self, other.value), (other, self.value))

    def __neg__(self) -> Dual:
        return self * -1.0

    def __sub__(self, other: Dual | float) -> Dual:
        return self + (-other)

    def __truediv__(self, number: float) -> Dual:
        return self * (1.0 / number)

    __radd__, __rmul__ = __add__, __mul__

    def exp(self) -> Dual:
        """e to the power of it."""
        value = math.exp(self.value)
        return self._chain(value, (self, value))

    def sigmoid(self) -> Dual:
        """1 / (1 + e^-x)."""
        value = 1 / (1 + math.exp(-self.value))
        return self._chain(value, (self, value * (1 - value)))


def stop(x: Dual) -> float:
    """The value alone."""
    return x.value


@dataclass
class Token:
    """One trained token. old: None in a first pass."""

    index: int
    logp: Dual
    entropy: Dual
    old: float | None = None
    sampler: float = 0.0
    reference: float = 0.0
    scored_entropy: float = 0.0


@dataclass
class Rollout:
    """Its trained tokens and its advantage."""

    advantage: float
    tokens: list[Token] = field(default_factory=list)


@dataclass
class Options:
    """What is switched on. loss: a dict of the loss's own options."""

    name: str
    loss: dict[str, Any]
    level: str = "token"
    beta: float = 0.0
    bias: bool = True
    longest: int = 1
    parts: list[list[int]] = field(default_factory=list)
    """rollouts of each micro-batch"""


def log_ratio(token: Token) -> Dual:
    """log pi - log pi_old."""
    return token.logp - (stop(token.logp) if token.old is None else token.old)


def total(numbers: Any) -> Any:
    """Sum that starts from the first number."""
    result: Any = 0.0
    for number in numbers:
        result = number + result
    return result


def ratio(rollout: Rollout, token: Token, level: str) -> Dual:
    """The importance ratio of a token."""
    if level == "token":
        return log_ratio(token).exp()
    mean = total(log_ratio(other) for other in rollout.tokens) / len(rollout.tokens)
    if level == "sequence":
        return mean.exp()
    return (token.logp - stop(token.logp) + stop(mean)).exp()


def smaller(a: Dual, b: Dual) -> Dual:
    """min."""
    return a if a.value < b.value else b


def clip(x: Dual, low: float, high: float) -> Dual:
    """x within [low, high], flat outside."""
    return x if low <= x.value <= high else Dual(min(max(x.value, low), high))


def policy_term(rollout: Rollout, token: Token, options: Options) -> Dual:
    """The loss of one token before any factor."""
    own, advantage = options.loss, rollout.advantage
    if options.name == "vespo":
        return -(vespo_weight(rollout, options) * advantage * token.logp)
    r = ratio(rollout, token, options.level)
    if options.name == "cispo":
        return -(min(stop(r), own["epsilon_high"]) * advantage * token.logp)
    if options.name == "sapo":
        tau = own["sapo_temperature_pos"] if advantage > 0 else own["sapo_temperature_neg"]
        return -(advantage * 4 / tau * ((r - 1) * tau).sigmoid())
    epsilon = own["epsilon"]
    high = epsilon if own["epsilon_high"] is None else own["epsilon_high"]
    bounded = r if own["delta"] is None else smaller(r, Dual(own["delta"]))
    return -smaller(bounded * advantage, clip(r, 1 - epsilon, 1 + high) * advantage)


def vespo_weight(rollout: Rollout, options: Options) -> float:
    """phi of the whole rollout."""
    own = options.loss
    s = sum(min(max(stop(log_ratio(token)), -20.0), 20.0) for token in rollout.tokens)
    log_w = min(max(s, math.log(1e-8)), 20.0)
    sign = "pos" if rollout.advantage >= 0 else "neg"
    k, decay = own[f"vespo_k_{sign}"], own[f"vespo_lambda_{sign}"]
    return math.exp(decay + k * log_w - decay * math.exp(log_w))


def kl_term(rollout: Rollout, token: Token, options: Options) -> Dual:
    """k3, times the importance ratio when corrected (the token's own for vespo)."""
    d = -(token.logp - token.reference)
    k3 = d.exp() - d - 1.0
    return k3 * ratio(rollout, token, "token" if options.name == "vespo" else options.level) if options.bias else k3


def objective(rollouts: list[Rollout], options: Options) -> Dual:
    """The loss of a step."""
    terms = {token.index: token_loss(rollout, token, options) for rollout in rollouts for token in rollout.tokens}

    def summed(rollout: Rollout) -> Any:
        return total(terms[token.index] for token in rollout.tokens)

    tokens = sum(len(rollout.tokens) for rollout in rollouts)
    if options.name in ("dapo", "cispo", "vespo"):
        loss = total(summed(rollout) for rollout in rollouts) / max(tokens, 1)
    elif options.name in ("grpo", "sapo"):
        loss = total(summed(rollout) / max(len(rollout.tokens), 1) for rollout in rollouts) / len(rollouts)
    elif options.name == "dr_grpo":
        loss = total(summed(rollout) for rollout in rollouts) / (len(rollouts) * options.longest)
    elif options.name == "luspo":
        loss = total(summed(rollout) for rollout in rollouts) / len(rollouts)
    else:
        loss = Dual(0.0)
        for part in options.parts:
            inside = [rollouts[i] for i in part]
            loss = loss + total(summed(rollout) for rollout in inside) / max(sum(len(rollout.tokens) for rollout in inside), 1) / len(options.parts)
    return loss


def token_loss(rollout: Rollout, token: Token, options: Options) -> Dual:
    """Policy term, then the additive KL."""
    x = policy_term(rollout, token, options)
    return x + kl_term(rollout, token, options) * options.beta if options.beta else x
