"""Batches of rollouts with texts, and an algorithm=sdpo that reads them, for tests."""

from __future__ import annotations

from typing import Any

from batches import batch_of, rollout
from loss_batches import loss_config
from models_for_tests import tiny_model

from rlexp.algorithms.sdpo import SDPO
from rlexp.chat.rendering import Renderer
from rlexp.config.sdpo import SDPOConfig
from rlexp.data.tasks import TaskData
from rlexp.records.rollout import GenerationBatch, Rollout
from rlexp.registry import LOSSES

LOADED = tiny_model(spread=2.0)
RENDERER = Renderer(LOADED.tokenizer)
QUESTION = "12+34="


def sdpo(loss: str = "dapo", seed: int = 0, loss_options: dict[str, Any] | None = None, **options: Any) -> SDPO:
    """algorithm=sdpo with options, ready to make samples."""
    config = loss_config(loss, **(loss_options or {}))
    made = SDPO(SDPOConfig(**options), config, LOSSES.load(loss))
    made.reward_weights, made.seed = {"r": 1.0}, seed
    made.prepare(RENDERER, LOADED.context, TaskData([{"prompt": "p"}], [], ""))
    return made


def answer(text: str, reward: float, group: int, index: int, *, feedback: Any = None, conversational: bool = False, question: str = QUESTION) -> Rollout:
    """A rollout that answered a question with a text. feedback: the task's privileged_context."""
    prompt: Any = [{"role": "user", "content": question}] if conversational else question
    ids = [*LOADED.tokenizer(text, add_special_tokens=False)["input_ids"], LOADED.eos_ids[0]]
    made = rollout(RENDERER.render(prompt).ids.tolist(), ids, reward, group, index, logp=-2.0)
    made.task = {"prompt": prompt, **({} if feedback is None else {"privileged_context": feedback})}
    made.completion_text = text
    return made


def groups(*rewards: list[float], feedback: Any = None) -> GenerationBatch:
    """A batch with these rewards by group; rollout i of group g answers with "g", i+1 times "i"."""
    texts = [[f"{g}{str(i) * (i + 1)}" for i in range(len(of_group))] for g, of_group in enumerate(rewards)]
    return batch_of([[answer(texts[g][i], reward, g, i, feedback=feedback) for i, reward in enumerate(of_group)] for g, of_group in enumerate(rewards)])
