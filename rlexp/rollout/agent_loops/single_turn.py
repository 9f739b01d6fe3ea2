"""One prompt, one completion."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rlexp.generation.base import Generator
from rlexp.records.rollout import Rollout
from rlexp.records.turn import EOS, Turn
from rlexp.rollout.start import Start

if TYPE_CHECKING:
    from rlexp.chat.rendering import Rendered, Renderer


async def single_turn(start: Start, generator: Generator, renderer: Renderer) -> list[Rollout]:
    """Render the task's prompt and sample once. Several agents each answer the same prompt; none sees another's answer."""
    rendered = renderer.render(start.task["prompt"])
    ids, text = rendered.ids, rendered.text
    if start.prompt_limit is not None and len(ids) > start.prompt_limit:
        ids = ids[-start.prompt_limit :]
        text = renderer.decode(ids, special=True)
    requests = [start.request(ids, policy=policy, turn=turn) for turn, policy in enumerate(start.agents.values())]
    turns = await asyncio.gather(*(generator.sample(request) for request in requests))
    return [_rollout(start, agent, turn, renderer, rendered, text) for agent, turn in zip(start.agents, turns, strict=True)]


def _rollout(start: Start, agent: str, turn: Turn, renderer: Renderer, rendered: Rendered, prompt_text: str) -> Rollout:
    """A conversational prompt gives the completion as one assistant message."""
    plain = renderer.decode(turn.ids)
    shown = turn.ids[:-1] if turn.finish == EOS else turn.ids
    return Rollout(
        task=start.task,
        group=start.group(agent),
        index=start.number,
        agent=agent,
        policy=start.agents[agent],
        joint=start.joint,
        turns=[turn],
        prompt=rendered.prompt,
        completion=plain if isinstance(rendered.prompt, str) else [{"role": "assistant", "content": plain}],
        prompt_text=prompt_text,
        completion_text=plain,
        completion_text_special=renderer.decode(shown, special=True),
    )
