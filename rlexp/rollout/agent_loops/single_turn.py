"""One prompt, one completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlexp.generation.base import Generator
from rlexp.records.rollout import Rollout
from rlexp.records.turn import EOS
from rlexp.rollout.start import Start

if TYPE_CHECKING:
    from rlexp.chat.rendering import Renderer

_POLICY = "policy"


async def single_turn(start: Start, generator: Generator, renderers: Mapping[str, Renderer]) -> list[Rollout]:
    """Render the task's prompt, sample once. A conversational prompt gives the completion as one assistant message."""
    renderer = renderers[_POLICY]
    rendered = renderer.render(start.task["prompt"])
    ids, text = rendered.ids, rendered.text
    if start.prompt_limit is not None and len(ids) > start.prompt_limit:
        ids = ids[-start.prompt_limit :]
        text = renderer.decode(ids, special=True)
    turn = await generator.sample(start.request(ids))
    plain = renderer.decode(turn.ids)
    shown = turn.ids[:-1] if turn.finish == EOS else turn.ids
    return [
        Rollout(
            task=start.task,
            group=start.group(),
            index=start.number,
            turns=[turn],
            prompt=rendered.prompt,
            completion=plain if isinstance(rendered.prompt, str) else [{"role": "assistant", "content": plain}],
            prompt_text=text,
            completion_text=plain,
            completion_text_special=renderer.decode(shown, special=True),
        )
    ]
