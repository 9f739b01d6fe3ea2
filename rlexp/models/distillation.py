"""The column `distillation`: how far the next-token distribution is from the teacher's, one chunk of logits at a time."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlexp.config.sdpo import SDPOConfig
from rlexp.losses.distillation import divergence, on_support, sampled
from rlexp.models.columns import Chunk, log_prob

TEACHER = "teacher"
"""name of the companion"""
DISTILLATION = "distillation"
"""name of the column"""
SUPPORT_LOGP = "support_logp"
"""name of the column of log-probs on a support that a server chose"""


def support_logp(chunk: Chunk) -> Tensor:
    """Log-probs over the whole vocabulary of the ids of the support, [K, C]."""
    assert chunk.support_KC is not None
    return chunk.logits_KV.gather(-1, chunk.support_KC) - chunk.logits_KV.logsumexp(-1, keepdim=True)


@dataclass(frozen=True)
class Distillation:
    """Column of algorithm=sdpo. Both distributions are over the whole vocabulary at the sampling temperature, however sampling was truncated."""

    mode: str
    alpha: float
    topk: int | None
    support: str
    add_tail: bool

    @classmethod
    def of(cls, config: SDPOConfig) -> Distillation:
        """As the options say."""
        return cls(config.distillation_mode, config.distillation_alpha, config.distillation_topk, config.distillation_support, config.distillation_add_tail)

    def __call__(self, chunk: Chunk) -> Tensor:
        """The per-token loss, [K], with gradient to the student's logits."""
        logits_KV, teacher_KV = chunk.logits_KV, chunk.companion_logits[TEACHER].to(chunk.logits_KV.dtype)
        if self.mode == "sampled_token":
            teacher_K = teacher_KV.gather(-1, chunk.target_K[:, None]).squeeze(-1) - teacher_KV.logsumexp(-1)
            return sampled(log_prob(chunk), teacher_K)
        if self.mode == "full_logits":
            return divergence(logits_KV, teacher_KV, self.alpha)
        assert self.topk is not None
        source = logits_KV.detach() if self.support == "student" else teacher_KV
        support_KC = source.topk(min(self.topk, source.shape[-1]), -1).indices
        return divergence(*on_support(logits_KV, teacher_KV, support_KC, self.add_tail), self.alpha)
