"""`model=tiny_reprompt`: the tiny model whose warm start has also seen what `algorithm=sdpo` shows to a teacher.

Beside each batch of sums it answers prompts with a solution, with feedback, or with both, in the wording of the default templates, always
rightly: with a hint before it, it does not forget carries. A network that never saw such a prompt could not use one.
"""

from __future__ import annotations

from collections.abc import Iterator

from transformers import PreTrainedTokenizerFast

from rlexp.config.model import TinyRepromptModelConfig
from rlexp.config.sdpo import FEEDBACK, REPROMPT, SOLUTION
from rlexp.models.cache import cached
from rlexp.models.hub import load_folder
from rlexp.models.loaded import LoadedModel
from rlexp.models.tiny import Transcripts, answered, batches, make, problems, recipe_of
from rlexp.records.addition import addition_problem, careless_answer
from rlexp.records.reprompt import Templates

VERSION = 1
"""part of the cache key: raise it when anything below changes the result"""
BATCH = 16
"""hinted prompts learnt with each batch of plain ones, which are a fifth as long"""
TEMPLATES = Templates(REPROMPT, SOLUTION, FEEDBACK)


def load(config: TinyRepromptModelConfig, *, seed: int) -> LoadedModel:
    """The model, made on first use and then read from the cache. The run's seed does not enter: every run starts alike."""
    recipe = {**recipe_of(config), "reprompt": VERSION}
    folder = cached("tiny_reprompt", recipe, lambda folder: make(config, folder, lambda tokenizer: hinted(config, tokenizer)))
    return load_folder(folder, config, seed=seed, label="tiny_reprompt")


def hinted(config: TinyRepromptModelConfig, tokenizer: PreTrainedTokenizerFast) -> Iterator[Transcripts]:
    """Batches of hinted prompts with right answers, the three kinds in turn, without end."""
    training, _ = problems(config.warm_start_digits, config.init_seed)
    kinds = [batches(answered([exchange(a, b, kind) for a, b in training], tokenizer), config.init_seed, BATCH) for kind in ("solution", "feedback", "both")]
    while True:
        for kind in kinds:
            yield next(kind)


def exchange(a: int, b: int, kind: str) -> tuple[str, str]:
    """The teacher's prompt for a sum and its right answer. The solution is the right answer, the feedback says which wrong one was given."""
    question, answer = addition_problem(a, b)
    solution = answer if kind in ("solution", "both") else None
    feedback = f"{careless_answer(a, b)} is wrong: carries were forgotten." if kind in ("feedback", "both") else None
    return TEMPLATES.filled(question, solution, feedback), answer
