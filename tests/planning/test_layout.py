"""The layout of a step is that of the packer, at the largest sizes that the config allows."""

from __future__ import annotations

import dataclasses

import pytest
from run_configs import composed

from rlexp.batching.packer import pack
from rlexp.batching.terms import flatten
from rlexp.build import build_algorithm
from rlexp.config.errors import UserError
from rlexp.config.run import RunConfig
from rlexp.models.tokenizer import character_tokenizer
from rlexp.planning.layout import Prompts, layout_of, prompts_of, row_of, samples_of

CONTEXT = 512


def config_of(*overrides: str) -> RunConfig:
    return composed("experiment=none", "data=addition", "reward=[exact_match]", "model.warm_start_accuracy=0", *overrides)


@pytest.mark.parametrize(
    ("prompts", "generations", "completion", "prompt", "budget", "steps", "ranks", "teacher"),
    [
        (4, 4, 10, 20, 8192, 1, 1, 0),  # everything in one row
        (4, 4, 10, 20, 120, 1, 1, 0),  # two groups in a row
        (6, 4, 10, 20, 64, 2, 1, 0),  # rows that cut groups
        (8, 4, 12, 30, 100, 1, 2, 0),
        (2, 8, 16, 40, 100, 1, 4, 0),  # a group on several ranks
        (4, 4, 10, 20, 120, 1, 1, 35),  # the teacher's sequences fill rows first
        (3, 2, 1, 5, 8, 1, 1, 0),  # completions of one token
    ],
)
def test_rows_are_those_of_the_packer(prompts: int, generations: int, completion: int, prompt: int, budget: int, steps: int, ranks: int, teacher: int) -> None:
    config = config_of(
        f"rollout.prompts_per_batch={prompts}",
        f"algorithm.num_generations={generations}",
        f"rollout.max_completion_length={completion}",
        f"trainer.tokens_per_microbatch={budget}",
        f"trainer.steps_per_batch={steps}",
    )
    layout = layout_of(config, Prompts(prompt, "given", teacher), ranks, CONTEXT)
    beside = frozenset({"teacher"} if teacher else ())
    made, terms = row_of(layout, beside, "policy")
    assert made.row.tokens == layout.row_tokens <= budget
    assert len(made.row.term_L) == layout.row * completion == terms.count
    if teacher:
        assert made.companions["teacher"].tokens <= budget
    # a whole step through the packer: as many rows on each rank, none larger
    whole = dataclasses.replace(layout, row=layout.samples * ranks)
    samples = samples_of(whole, beside, "policy")
    all_terms = flatten(samples)
    by_rank = pack(samples, all_terms, range(len(samples)), budget=budget, world=ranks, companions=sorted(beside))
    largest = max(micro_batch.row.tokens for rows in by_rank for micro_batch in rows)
    assert abs(len(by_rank[0]) - layout.micro_batches) <= 1
    assert largest <= budget and largest == pytest.approx(layout.row_tokens, rel=0.35)
    if layout.micro_batches == 1 and ranks == 1:
        assert largest == layout.row_tokens and len(by_rank[0]) == 1
    assert layout.trained == terms.count // layout.row * layout.samples * ranks


def test_prompts_are_measured_where_tasks_and_tokenizer_are_at_hand() -> None:
    config = config_of("data.digits=2")
    found = prompts_of(config, build_algorithm(config), character_tokenizer(CONTEXT), CONTEXT, None)
    longest = len(character_tokenizer(CONTEXT).apply_chat_template([{"role": "user", "content": "99+99="}], add_generation_prompt=True)["input_ids"])
    assert (found.tokens, found.source, found.teacher) == (longest, "longest of the tasks", 0)
    assert prompts_of(config, build_algorithm(config), character_tokenizer(CONTEXT), CONTEXT, 7).tokens == 7


def test_prompts_without_a_tokenizer() -> None:
    config = config_of("rollout.max_completion_length=100")
    algorithm = build_algorithm(config)
    assert prompts_of(config, algorithm, None, CONTEXT, None).tokens == CONTEXT - 100
    assert prompts_of(config_of("data.max_prompt_length=50"), algorithm, None, CONTEXT, None).tokens == 50


def test_the_teachers_prompt() -> None:
    config = config_of("algorithm=sdpo", "rollout.max_completion_length=8")
    algorithm = build_algorithm(config)
    known = prompts_of(config, algorithm, character_tokenizer(CONTEXT), CONTEXT, None)
    assert known.teacher > known.tokens + 8
    guessed = prompts_of(config, build_algorithm(config), None, CONTEXT, 20)
    assert guessed.teacher == 20 + 8 + 64


@pytest.mark.parametrize(("given", "said"), [(0, "--prompt-tokens"), (CONTEXT, "context"), (60, "does not fit")])
def test_prompts_that_fit_nowhere(given: int, said: str) -> None:
    config = config_of("trainer.tokens_per_microbatch=64", "rollout.max_completion_length=8")
    with pytest.raises(UserError, match=said):
        layout_of(config, prompts_of(config, build_algorithm(config), None, CONTEXT, given), 1, CONTEXT)
