"""What every generator is, and how the config becomes a Sampling. Torch-free, so that a dry run can check generation_kwargs."""

from __future__ import annotations

import dataclasses
import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from rlexp.config.errors import UserError
from rlexp.config.fields import problems_of
from rlexp.config.generation import GenerationConfig
from rlexp.config.values import WrongType, convert_value
from rlexp.records.request import Request, Sampling
from rlexp.records.turn import Turn

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

_ALIASES = {"stop_strings": "stop", "stop_token_ids": "stop_ids"}
"""transformers' and vLLM's names of options that have a key of their own"""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop", "stop_ids")


class Policy(Protocol):
    """What a local generator reads of a loaded model (rlexp.models.loaded.LoadedModel)."""

    module: nn.Module
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    context: int


class Generator(Protocol):
    """Turns token ids into token ids."""

    version: int
    """weight version that samples now"""
    provides: frozenset[str]
    """what turns carry beside log-probs, e.g. "candidates" """

    async def sample(self, request: Request) -> Turn:
        """One turn. Raises BadPrompt when the context leaves no room for a token."""
        ...

    def set_version(self, version: int) -> None:
        """Told by the trainer after each weight sync."""
        ...


class Wave(Protocol):
    """Collects the requests of the live rollouts (rlexp.rollout.wave)."""

    async def join(self, generator: LocalGenerator, request: Request) -> Turn:
        """Wait until the wave runs; returns the request's turn."""
        ...


current_wave: ContextVar[Wave | None] = ContextVar("current_wave", default=None)
"""the wave of the rollout this code runs for; set by the scheduler, so that agent loops know nothing of waves"""


Done = Callable[[int, Turn], None]
"""takes the place of a request in its wave, and its turn"""


class BadPrompt(UserError):
    """A prompt that cannot be sampled from. The rollout source adds which task it was."""


class LocalGenerator(ABC):
    """A generator in this process. It samples whole waves; a request outside a wave is a wave of its own."""

    provides = frozenset({"candidates"})

    def __init__(self) -> None:
        self.version = 0

    def set_version(self, version: int) -> None:
        """Told by the trainer after each step; the weights themselves are read live."""
        self.version = version

    @abstractmethod
    def check(self, request: Request) -> None:
        """Raise BadPrompt for a request that cannot be served, so that its own rollout fails and not another one of the wave."""

    @abstractmethod
    def sample_wave(self, requests: Sequence[Request]) -> list[Turn]:
        """One turn for each request, in the order given. What is sampled does not depend on that order."""

    def stream_wave(self, requests: Sequence[Request], done: Done) -> None:
        """The same turns, each handed to `done` once, as early as the backend can. It runs in a thread; a `done` that raises ends the wave."""
        for place, turn in enumerate(self.sample_wave(requests)):
            done(place, turn)

    async def sample(self, request: Request) -> Turn:
        """Join the wave of the running rollout."""
        self.check(request)
        wave = current_wave.get()
        if wave is None:
            return self.sample_wave([request])[0]
        return await wave.join(self, request)


def free_form(value: Any, key: str) -> dict[str, Any]:
    """A free-form section (a dict, a JSON string or null) as a dict. Raises UserError naming the key."""
    try:
        return convert_value(value, Any) or {}
    except WrongType as error:
        raise UserError(f"{key}={value} has the wrong type: it must be {error}") from error


def sampling_from(config: GenerationConfig, *, temperature: float | None = None) -> Sampling:
    """The Sampling a generation config asks for: its keys, beaten by generation_kwargs (row GRPO-082).

    temperature: beats both (evaluation.temperature, which may be 0). What is left of generation_kwargs lands in `extra`; the native
    generator knows none. Raises UserError for unknown names and for values out of range.
    """
    given = free_form(config.generation_kwargs, "generation.generation_kwargs")
    merged, extra = {}, {}
    for name, value in given.items():
        target = _ALIASES.get(name, name)
        if target not in _SAMPLING:
            extra[name] = value
        elif target in merged:
            raise UserError(f"generation.generation_kwargs has {name} and another name of the same option; keep one")
        else:
            merged[target] = _as_list(value) if target in ("stop", "stop_ids") else value
    if extra and not config.free_arguments:
        raise UserError(_unknown(config.name, extra))
    values = {name: merged.get(name, getattr(config, name)) for name in _SAMPLING}
    problems = problems_of(dataclasses.replace(config, **values), "generation.generation_kwargs: ") if merged else []
    wrong = [item for item in values["stop"] if not isinstance(item, str) or not item]
    problems += [f"generation.stop holds {item!r}: every stop must be text that is not empty" for item in wrong]
    if problems:
        raise UserError("\n".join(problems))
    if temperature is not None:
        values["temperature"] = temperature
    values["stop"], values["stop_ids"] = tuple(values["stop"]), tuple(values["stop_ids"])
    return Sampling(**values, extra=tuple(sorted(extra.items())))


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def refuse_arguments(names: Iterable[str], *, refused: Mapping[str, str], known: Collection[str], owner: str) -> None:
    """Check the generation_kwargs that reach an engine. refused: name -> why it cannot be used. owner: whose arguments `known` are. Raises UserError."""
    problems = []
    for name in names:
        if name in refused:
            problems.append(f"generation.generation_kwargs.{name} cannot be used: {refused[name]}")
        elif name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            problems.append(f"generation.generation_kwargs.{name} is no argument of {owner}{hint}")
    if problems:
        raise UserError("\n".join(problems))


def _unknown(generator: str, extra: dict[str, Any]) -> str:
    known = [*_SAMPLING, *_ALIASES]
    parts = []
    for name in extra:
        close = difflib.get_close_matches(name, known, 1)
        parts.append(f"{name} (did you mean {close[0]}?)" if close else name)
    return f"generation.generation_kwargs: generation={generator} does not know {', '.join(parts)}; it knows {', '.join(known)}"
