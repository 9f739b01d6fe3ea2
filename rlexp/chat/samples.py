"""Turns to samples: the token sequences to train on hold exactly the ids that were sampled."""

from __future__ import annotations

import numpy as np

from rlexp.records.rollout import Rollout
from rlexp.records.sample import Sample
from rlexp.records.turn import Candidates, Turn, joined_candidates


class _Builder:
    """One sample in the making."""

    def __init__(self) -> None:
        self.ids: list[np.ndarray] = []
        self.length = 0
        self.position: list[np.ndarray] = []
        self.target: list[np.ndarray] = []
        self.logp: list[np.ndarray] = []
        self.candidates: list[Candidates | None] = []

    def starts(self, prompt: np.ndarray) -> bool:
        """Whether a prompt starts with the tokens held so far."""
        return len(prompt) >= self.length and bool(np.array_equal(prompt[: self.length], np.concatenate(self.ids)))

    def add(self, turn: Turn) -> None:
        """Append what the turn's prompt has beyond the held tokens (context only), then its sampled tokens."""
        self._extend(turn.prompt_ids[self.length :])
        trained = np.ones(len(turn.ids), bool) if turn.trained is None else np.asarray(turn.trained, bool)
        if len(trained) != len(turn.ids) or len(turn.logprobs) != len(turn.ids):
            raise ValueError(f"a turn of {len(turn.ids)} tokens has {len(turn.logprobs)} log-probs and a mask of {len(trained)}")
        kept = np.flatnonzero(trained)
        if len(kept) and self.length + kept[0] == 0:
            raise ValueError("a turn with an empty prompt: its first token has no position that predicts it")
        self.position.append(self.length + kept - 1)
        self.target.append(np.asarray(turn.ids, np.int64)[kept])
        self.logp.append(np.asarray(turn.logprobs, np.float32)[kept])
        if len(kept):
            self.candidates.append(None if turn.candidates is None else turn.candidates.take(kept))
        self._extend(turn.ids)

    def _extend(self, ids: np.ndarray) -> None:
        self.ids.append(np.asarray(ids, np.int64))
        self.length += len(ids)

    def sample(self, number: int, model: str) -> Sample | None:
        """The finished sample; None when nothing in it is trained."""
        target = np.concatenate(self.target)
        if not len(target):
            return None
        return Sample(model, number, np.concatenate(self.ids), np.concatenate(self.position), target, np.concatenate(self.logp), self._candidates())

    def _candidates(self) -> Candidates | None:
        given = [of_turn for of_turn in self.candidates if of_turn is not None]
        if not given:
            return None
        if len(given) < len(self.candidates):
            raise ValueError("some turns of a rollout come with candidate ids and some without: sample all turns of a rollout with the same truncation")
        return joined_candidates(given)


def samples_of(rollout: Rollout, number: int, model: str) -> list[Sample]:
    """The samples of one rollout, in order. number: its index in the batch. model: the trainable that forwards them.

    A turn whose prompt starts with the tokens held so far is appended to the same sample; any other starts a new one (a fork:
    the template rendered the conversation differently). Every sampled token whose `trained` mask is set is a loss term of
    exactly one sample; a sample without terms is left out. Rows ASYNC-327 to 333.
    """
    builders: list[_Builder] = []
    for turn in rollout.turns:
        if not builders or not builders[-1].starts(turn.prompt_ids):
            builders.append(_Builder())
        builders[-1].add(turn)
    return [sample for builder in builders if (sample := builder.sample(number, model)) is not None]
