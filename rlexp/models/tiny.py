"""`model=tiny`, the embedded default: a small character-level network that is made on first use.

A Qwen3-type network of about a million parameters learns addition by a supervised pass, then picks up a bad habit by a second, shorter
one: it forgets most carries. It still knows the right answer and gives it sometimes, so reinforcement learning has something to build
on and something to improve.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from rlexp.config.errors import UserError
from rlexp.config.model import TinyModelConfig
from rlexp.models.cache import cached, write_model
from rlexp.models.hub import load_folder
from rlexp.models.loaded import LoadedModel
from rlexp.models.tokenizer import character_tokenizer
from rlexp.records import keys
from rlexp.records.addition import addition_problem, careless_answer, held_out_operands

log = logging.getLogger(__name__)

VERSION = 4
"""part of the cache key: raise it when anything below changes the result"""
CONTEXT = 512
THREADS = 1
"""of the warm start, whatever the caller uses: the last bits of sums depend on it, and a network this small gains nothing from two"""
BATCH, WARM_UP_STEPS = 64, 20
AVERAGE = 0.8
"""decay of the averaged weights, which are checked and kept: single steps jump by a tenth of the accuracy"""
INITIAL_STD = 0.06
"""of the random weights: three times the library's, with which a network this narrow learns in half as many steps"""
SKILL, SKILL_RATE, SKILL_CHECK, SKILL_STEPS = 0.93, 2e-3, 10, 1500
"""first pass, right answers: accuracy to reach, learning rate, steps between checks, most steps"""
HABIT_RATE, HABIT_CHECK, HABIT_STEPS = 1e-4, 1, 100
"""second pass, forgotten carries: slow, so that it can be stopped close to the accuracy asked for"""
TRAINING, VALIDATION = 6000, 512
"""problems; 512 give the accuracy with a standard error of 0.02"""


def load(config: TinyModelConfig, *, seed: int) -> LoadedModel:
    """The tiny model, made on first use and then read from the cache. The run's seed does not enter: every run starts alike."""
    recipe = recipe_of(config)
    return load_folder(cached("tiny", recipe, lambda folder: make(config, folder)), config, seed=seed, label="tiny")


def recipe_of(config: TinyModelConfig) -> dict[str, float]:
    """What the weights depend on."""
    if config.hidden_size % (2 * config.heads):
        raise UserError(f"model.hidden_size={config.hidden_size} must be a multiple of 2 x model.heads={config.heads}")
    return {
        "version": VERSION,
        "hidden_size": config.hidden_size,
        "layers": config.layers,
        "heads": config.heads,
        "accuracy": config.warm_start_accuracy,
        "digits": config.warm_start_digits,
        "seed": config.init_seed,
    }


Beside = Callable[[PreTrainedTokenizerFast], Iterator["Transcripts"]]
"""tokenizer -> further batches, one of which is learnt with every batch of sums"""


def make(config: TinyModelConfig, folder: Path, beside: Beside | None = None) -> None:
    """Build, warm-start and save the model. Deterministic; the global random state and thread count are left as they were."""
    tokenizer = character_tokenizer(CONTEXT)
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keys.key(config.init_seed, "tiny") % 2**63)
        module = Qwen3ForCausalLM(architecture(config, tokenizer))
    if config.warm_start_accuracy > 0:
        started = time.monotonic()
        log.info(
            "making the tiny model (once, about half a minute): it learns to add, then to forget carries until %.0f%% are right",
            100 * config.warm_start_accuracy,
        )
        torch.set_num_threads(THREADS)
        try:
            steps, accuracy = warm_start(module, tokenizer, config, beside(tokenizer) if beside is not None else None)
        finally:
            torch.set_num_threads(threads)
        log.info("made the tiny model: %d steps in %.0f s, accuracy %.2f on problems it has not seen", steps, time.monotonic() - started, accuracy)
    write_model(module, tokenizer, folder)


def architecture(config: TinyModelConfig, tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """Qwen3 with untied embeddings."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=3 * config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        head_dim=config.hidden_size // config.heads,
        max_position_embeddings=CONTEXT,
        initializer_range=INITIAL_STD,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


@dataclass
class Transcripts:
    """Chats with their answers, padded on the right."""

    ids: Tensor
    """int64 [n, T]"""
    answer: Tensor
    """bool [n, T]: positions whose next token belongs to the answer (its <|im_end|> included)"""

    def rows(self, which: Tensor) -> Transcripts:
        """Some of them."""
        return Transcripts(self.ids[which], self.answer[which])

    @property
    def target(self) -> Tensor:
        """The answer tokens of all rows, int64 [sum of lengths]."""
        return self.ids.roll(-1, dims=1)[self.answer]


def transcripts(operands: list[tuple[int, int]], tokenizer: PreTrainedTokenizerFast, careless: bool = False) -> Transcripts:
    """The chats in which these sums are asked, as `data=addition` words them, and answered; careless: with every carry forgotten."""
    return answered([(addition_problem(a, b)[0], careless_answer(a, b) if careless else addition_problem(a, b)[1]) for a, b in operands], tokenizer)


def answered(exchanges: Sequence[tuple[str, str]], tokenizer: PreTrainedTokenizerFast) -> Transcripts:
    """Chats of one question and its answer each."""
    chats, starts = [], []
    for question, answer in exchanges:
        text = tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        starts.append(len(prompt))
        chats.append([*prompt, *tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])
    width = max(map(len, chats))
    ids = torch.tensor([[*chat, *[tokenizer.pad_token_id] * (width - len(chat))] for chat in chats])
    place = torch.arange(width)
    first, last = torch.tensor(starts)[:, None], torch.tensor([len(chat) for chat in chats])[:, None]
    return Transcripts(ids, (place >= first - 1) & (place < last - 1))


def problems(digits: int, seed: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Operands for training and validation: distinct pairs, none in training that `data=addition` keeps for held-out tasks."""
    base = 10**digits
    pairs = keys.generator(seed, "tiny problems").choice(base * base, min(base * base, 4 * TRAINING), replace=False)
    drawn = [divmod(int(pair), base) for pair in pairs]
    unseen = [pair for pair in drawn if held_out_operands(*pair)]
    return [pair for pair in drawn if not held_out_operands(*pair)][:TRAINING], unseen[:VALIDATION]


def warm_start(
    module: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, config: TinyModelConfig, beside: Iterator[Transcripts] | None = None
) -> tuple[int, float]:
    """Teach the skill, then the habit, until greedy accuracy is about what is asked for. Returns steps and accuracy."""
    training, unseen = problems(config.warm_start_digits, config.init_seed)
    validation, goal = transcripts(unseen, tokenizer), config.warm_start_accuracy
    right = batches(transcripts(training, tokenizer), config.init_seed)
    learnt = together(right, beside)
    steps, accuracy = supervised(module, learnt, validation, SKILL_RATE, SKILL_CHECK, SKILL_STEPS, lambda accuracy: accuracy >= max(SKILL, goal))
    if goal >= SKILL or accuracy <= goal:
        return steps, accuracy
    wrong = batches(transcripts(training, tokenizer, careless=True), config.init_seed)
    learnt = together(wrong, beside)
    more, accuracy = supervised(module, learnt, validation, HABIT_RATE, HABIT_CHECK, HABIT_STEPS, lambda accuracy: accuracy <= goal)
    return steps + more, accuracy


def together(batches: Iterator[Transcripts], beside: Iterator[Transcripts] | None) -> Iterator[tuple[Transcripts, ...]]:
    """What each step learns: a batch, and one of the batches beside it if there are such."""
    return ((batch,) for batch in batches) if beside is None else zip(batches, beside, strict=False)


def supervised(
    module: Qwen3ForCausalLM,
    training: Iterator[tuple[Transcripts, ...]],
    validation: Transcripts,
    rate: float,
    check_every: int,
    most_steps: int,
    enough: Callable[[float], bool],
) -> tuple[int, float]:
    """Cross-entropy on answers until the averaged weights' greedy accuracy is `enough`; those weights are kept. Returns steps and accuracy."""
    parameters: list[Tensor] = list(module.parameters())
    average = [parameter.detach().clone() for parameter in parameters]
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    step, accuracy = 0, 0.0
    while step < most_steps:
        learnt, step = next(training), step + 1
        optimizer.param_groups[0]["lr"] = rate * min(1.0, step / WARM_UP_STEPS)
        for batch in learnt:
            cross_entropy(logits(module, batch), batch.target).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(average, parameters, 1 - AVERAGE)
        if step % check_every == 0 or step == most_steps:
            exchange(parameters, average)
            accuracy = greedy_accuracy(module, validation)
            if enough(accuracy):
                return step, accuracy
            exchange(parameters, average)
    exchange(parameters, average)
    return step, accuracy


def batches(training: Transcripts, seed: int, size: int = BATCH) -> Iterator[Transcripts]:
    """Batches of rows in a new order each time round, without end."""
    size = min(size, len(training.ids))
    for epoch in itertools.count():
        order = torch.from_numpy(keys.generator(seed, "tiny order", epoch).permutation(len(training.ids)))
        for start in range(0, len(order) - size + 1, size):
            yield training.rows(order[start : start + size])


def logits(module: Qwen3ForCausalLM, batch: Transcripts) -> Tensor:
    """Logits of the answer tokens, [sum of lengths, V]."""
    hidden = module.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    return module.lm_head(hidden[batch.answer])


@torch.no_grad()
def greedy_accuracy(module: Qwen3ForCausalLM, validation: Transcripts) -> float:
    """Share of problems whose greedy answer is right: along the right answer every token must be the most probable one."""
    right = (logits(module, validation).argmax(-1) == validation.target).float()
    lengths = validation.answer.sum(1)
    row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return float(np.mean(torch.zeros(len(lengths)).scatter_reduce(0, row, right, "amin", include_self=False).numpy()))


@torch.no_grad()
def exchange(parameters: list[Tensor], others: list[Tensor]) -> None:
    """Swap the values of two lists of tensors."""
    for parameter, other in zip(parameters, others, strict=True):
        held = parameter.clone()
        parameter.copy_(other)
        other.copy_(held)
