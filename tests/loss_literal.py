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

    def abs(self) -> Dual:
        """|x|, flat at 0."""
        return self * (0.0 if self.value == 0 else math.copysign(1.0, self.value))

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
    kept: bool = True
    """by the entropy mask"""
    draw: float = 0.0
    """a random number of its own"""
    chosen: bool = False
    """by its covariance"""


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
    """of the ratio, for losses that leave it open"""
    beta: float = 0.0
    bias: bool = True
    longest: int = 1
    off_policy: float | None = None
    correction: tuple[str, float | None, float | None, bool] | None = None
    """mode, clip_min, clip_max, normalize"""
    top: float = 1.0
    entropy_coef: float = 0.0
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


RATIOS = {"vespo": "token", "gmpo": "sequence", "dppo": "sampler", "clip_cov": "token", "kl_cov": "token", "rloo": "product"}
"""of losses that have a ratio of their own"""


def ratio(rollout: Rollout, token: Token, options: Options) -> Dual:
    """The importance ratio of a token."""
    level = RATIOS.get(options.name, options.level)
    if level == "token":
        return log_ratio(token).exp()
    if level == "sampler":
        return (token.logp - token.sampler).exp()
    summed = total(log_ratio(other) for other in rollout.tokens)
    if level == "product":
        return summed.exp()
    mean = summed / len(rollout.tokens)
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
    if options.name == "gmpo":
        bounded = total(gmpo_log_ratio(one, advantage, own) for one in rollout.tokens) / len(rollout.tokens)
        return -(bounded.exp() * advantage)
    r = ratio(rollout, token, options)
    if options.name == "dppo":
        return Dual(0.0) if dppo_masked(token, advantage, own) else -(r * advantage)
    if options.name == "clip_cov":
        return Dual(0.0) if token.chosen else -(r * advantage)
    if options.name == "kl_cov":
        held = log_ratio(token).abs() * own["cov_kl_coef"] if token.chosen else Dual(0.0)
        return held - r * advantage
    if options.name == "cispo":
        return -(min(stop(r), own["epsilon_high"]) * advantage * token.logp)
    if options.name == "sapo":
        tau = own["sapo_temperature_pos"] if advantage > 0 else own["sapo_temperature_neg"]
        return -(advantage * 4 / tau * ((r - 1) * tau).sigmoid())
    epsilon = own["epsilon"]
    high = epsilon if own["epsilon_high"] is None else own["epsilon_high"]
    bounded = r if own.get("delta") is None else smaller(r, Dual(own["delta"]))
    return -smaller(bounded * advantage, clip(r, 1 - epsilon, 1 + high) * advantage)


def gmpo_log_ratio(token: Token, advantage: float, own: dict[str, Any]) -> Dual:
    """Flat beyond the bound that the advantage pushes to."""
    x = log_ratio(token)
    high = own["log_epsilon"] if own["log_epsilon_high"] is None else own["log_epsilon_high"]
    if advantage > 0:
        return smaller(x, Dual(high))
    return x if x.value > -own["log_epsilon"] else Dual(-own["log_epsilon"])


def dppo_masked(token: Token, advantage: float, own: dict[str, Any]) -> bool:
    """Whether the probability is far from the sampler's, on the side that the advantage pushes to."""
    moved = math.exp(stop(token.logp)) - math.exp(token.sampler)
    high = own["delta_low"] if own["delta_high"] is None else own["delta_high"]
    return (advantage > 0 and moved > high) or (advantage < 0 and moved < -own["delta_low"])


def clipped_sides(rollout: Rollout, token: Token, options: Options) -> tuple[bool, bool]:
    """Whether a token counts as clipped from below and from above."""
    own, advantage = options.loss, rollout.advantage
    if options.name == "dppo":
        masked = dppo_masked(token, advantage, own)
        return masked and advantage < 0, masked and advantage > 0
    if options.name == "gmpo":
        x = stop(log_ratio(token))
        high = own["log_epsilon"] if own["log_epsilon_high"] is None else own["log_epsilon_high"]
        return x < -own["log_epsilon"] and advantage < 0, x > high and advantage > 0
    r = stop(ratio(rollout, token, options))
    if options.name == "cispo":
        return False, r > own["epsilon_high"] and advantage > 0
    r = r if own.get("delta") is None else min(r, own["delta"])
    high = own["epsilon"] if own["epsilon_high"] is None else own["epsilon_high"]
    return r < 1 - own["epsilon"] and advantage < 0, r > 1 + high and advantage > 0


def metrics(rollouts: list[Rollout], options: Options) -> dict[str, float]:
    """Everything that a step logs, after `objective` has seen the rollouts."""
    tokens = [token for rollout in rollouts for token in rollout.tokens]
    pairs = [(rollout, token) for rollout in rollouts for token in rollout.tokens]
    bare = stop(reduced(rollouts, options))
    kept = [stop(token.entropy) for token in tokens if token.kept]
    entropy = sum(kept) / len(kept)
    made = {"loss": bare, "entropy": sum(stop(token.entropy) for token in tokens) / len(tokens), **loss_metrics(rollouts, options)}
    if options.beta:
        made["kl"] = sum(stop(kl_term(rollout, token, options)) for rollout, token in pairs) / len(pairs)
    if options.entropy_coef:
        made |= {"loss": bare - options.entropy_coef * entropy, "policy_loss": bare, "entropy_coef": options.entropy_coef, "entropy_kept": entropy}
    if options.correction is not None:
        by_token = options.correction[0].startswith("token")
        weights = [weight(rollout, token, options) for rollout, token in pairs if by_token or token is rollout.tokens[0]]
        name = "sampling/importance_sampling_ratio"
        made |= {f"{name}/min": min(weights), f"{name}/mean": sum(weights) / len(weights), f"{name}/max": max(weights)}
    return made


def loss_metrics(rollouts: list[Rollout], options: Options) -> dict[str, float]:
    """Of the loss itself: shares of clipped tokens, or of rollouts where the ratio is one of rollouts; vespo's mean weight."""
    there = [rollout for rollout in rollouts if rollout.tokens]
    if options.name in ("sapo", "clip_cov", "kl_cov"):
        return {}
    if options.name == "vespo":
        return {"vespo/phi_seq_mean": sum(vespo_weight(rollout, options) for rollout in there) / len(there)}
    sides = [[clipped_sides(rollout, token, options) for token in rollout.tokens] for rollout in there]
    low, high = ([sum(pair[side] for pair in pairs) / len(pairs) for pairs in sides] for side in (0, 1))
    if options.name == "rloo" or options.level in ("sequence", "sequence_token"):
        means = [sum(shares) / len(shares) for shares in (low, high)]
    else:
        means = [sum(pair[side] for pairs in sides for pair in pairs) / sum(map(len, sides)) for side in (0, 1)]
    if options.name == "cispo":
        return {"cispo_clip_ratio": means[1]}
    named = {"low_mean": means[0], "high_mean": means[1], "region_mean": sum(means), "low_min": min(low), "high_max": max(high)}
    return {f"clip_ratio/{name}": value for name, value in named.items()}


def choose_by_covariance(rollouts: list[Rollout], name: str, own: dict[str, Any]) -> None:
    """A share of the step's tokens, at least one: of those within the bounds the ones with the smallest draws, or those of highest covariance."""
    pairs = [(token, rollout.advantage) for rollout in rollouts for token in rollout.tokens]
    if not pairs:
        return
    logps = {token.index: stop(token.logp) if token.old is None else token.old for token, _ in pairs}
    mean_logp, mean_advantage = sum(logps.values()) / len(pairs), sum(advantage for _, advantage in pairs) / len(pairs)
    covariance = {token.index: (logps[token.index] - mean_logp) * (advantage - mean_advantage) for token, advantage in pairs}
    tokens = [token for token, _ in pairs]
    if name == "clip_cov":
        tokens = sorted((token for token in tokens if own["cov_low"] < covariance[token.index] < own["cov_high"]), key=lambda token: token.draw)
    else:
        tokens = sorted(tokens, key=lambda token: (-covariance[token.index], token.index))
    for token in tokens[: max(int(own["cov_share"] * len(pairs)), 1)]:
        token.chosen = True


def vespo_weight(rollout: Rollout, options: Options) -> float:
    """phi of the whole rollout."""
    own = options.loss
    s = sum(min(max(stop(log_ratio(token)), -20.0), 20.0) for token in rollout.tokens)
    if options.correction is not None:
        s += sum(min(math.log(max(weight(rollout, token, options), 1e-8)), 20.0) for token in rollout.tokens)
    log_w = min(max(s, math.log(1e-8)), 20.0)
    sign = "pos" if rollout.advantage >= 0 else "neg"
    k, decay = own[f"vespo_k_{sign}"], own[f"vespo_lambda_{sign}"]
    return math.exp(decay + k * log_w - decay * math.exp(log_w))


def kl_term(rollout: Rollout, token: Token, options: Options) -> Dual:
    """k3, times the importance ratio when corrected."""
    d = -(token.logp - token.reference)
    k3 = d.exp() - d - 1.0
    if not options.bias:
        return k3
    return k3 * ratio(rollout, token, options)


def objective(rollouts: list[Rollout], options: Options) -> Dual:
    """The loss of a step, less the entropy bonus."""
    if options.top < 1:
        threshold = entropy_threshold(rollouts, options.top)
        for token in (token for rollout in rollouts for token in rollout.tokens):
            token.kept = token.scored_entropy >= threshold
    if options.name in ("clip_cov", "kl_cov"):
        choose_by_covariance(rollouts, options.name, options.loss)
    loss = reduced(rollouts, options)
    kept = [token.entropy for rollout in rollouts for token in rollout.tokens if token.kept]
    return loss - total(kept) / max(len(kept), 1) * options.entropy_coef if options.entropy_coef else loss


def reduced(rollouts: list[Rollout], options: Options) -> Dual:
    """The token losses as one number."""
    terms = {token.index: token_loss(rollout, token, options) for rollout in rollouts for token in rollout.tokens}

    def summed(rollout: Rollout) -> Any:
        return total(terms[token.index] for token in rollout.tokens)

    tokens = sum(len(rollout.tokens) for rollout in rollouts)
    if options.name in ("dapo", "cispo", "vespo", "dppo", "clip_cov", "kl_cov"):
        loss = total(summed(rollout) for rollout in rollouts) / max(tokens, 1)
    elif options.name in ("grpo", "sapo", "gmpo", "rloo"):
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


def weight(rollout: Rollout, token: Token, options: Options) -> float:
    """pi_old / pi_sampler of a token or its rollout, within bounds. old is the policy itself in a first pass."""
    assert options.correction is not None
    mode, low, high, normalize = options.correction

    def gap(one: Token) -> float:
        return (stop(one.logp) if one.old is None else one.old) - one.sampler

    if mode.startswith("token"):
        w = math.exp(gap(token))
    else:
        w = math.exp(sum(gap(one) for one in rollout.tokens) / (len(rollout.tokens) if normalize else 1))
    if mode.endswith("truncate"):
        w = w if low is None else max(w, low)
        return w if high is None else min(w, high)
    return 0.0 if (low is not None and w < low) or (high is not None and w > high) else w


def kept_by_divergence(rollout: Rollout, threshold: float) -> bool:
    """Whether a rollout stays: not negative, or not too far from the sampler."""
    return rollout.advantage >= 0 or sum(token.sampler - stop(token.logp) for token in rollout.tokens) / len(rollout.tokens) <= threshold


def entropy_threshold(rollouts: list[Rollout], top: float) -> float:
    """The linear quantile at 1 - top of the scored entropies of the step."""
    ordered = sorted(token.scored_entropy for rollout in rollouts for token in rollout.tokens)
    place = (1 - top) * (len(ordered) - 1)
    below = min(int(place), len(ordered) - 2) if len(ordered) > 1 else 0
    return ordered[below] + (place - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])


def token_loss(rollout: Rollout, token: Token, options: Options) -> Dual:
    """Policy term, its factors, then the additive KL."""
    x = policy_term(rollout, token, options)
    if options.off_policy is not None and not kept_by_divergence(rollout, options.off_policy):
        x = x * 0.0
    if not token.kept:
        x = x * 0.0
    if options.correction is not None and options.name != "vespo":
        x = x * weight(rollout, token, options)
    return x + kl_term(rollout, token, options) * options.beta if options.beta else x
