"""TRL's own trainers on fixed rollouts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peer.ours import RATE
from peer.results import Steps
from peer.rollouts import GROUP, LENGTH, Rollouts, first, second
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer


class Take(TrainerCallback):
    """Keeps the gradient as the optimizer finds it, and what is logged."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """The gradient of all micro-batches."""
        self.steps.take(model.named_parameters())

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """One line for each step; the last line of a run, about its time, is none of them."""
        if logs and "grad_norm" in logs:
            self.steps.metrics.append({name: float("nan") if value is None else float(value) for name, value in logs.items()})


class Script:
    """Gives the answers to prompts in order."""

    def __init__(self, rollouts: Rollouts, tokenizer: Any) -> None:
        self.rollouts, self.answers = rollouts, rollouts.ids(tokenizer)
        self.tasks = {tuple(_prompt_ids(tokenizer, row["prompt"])): task for task, row in enumerate(rollouts.rows())}

    def __call__(self, prompts_ids: list[list[int]]) -> tuple[list[list[int]], list[list[float | None]]]:
        """Completion ids and sampler log-probs; the n-th time that a prompt comes it gets answer n."""
        seen: Counter[int] = Counter()
        completions, logprobs = [], []
        for ids in prompts_ids:
            task = self.tasks[tuple(ids)]
            number = seen[task] % GROUP
            seen[task] += 1
            completions.append(self.answers[task][number])
            given = self.rollouts.logprobs
            logprobs.append([-2.0] * len(completions[-1]) if given is None else list(given[task][number]))
        return completions, logprobs


def _prompt_ids(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    return list(tokenizer(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True), add_special_tokens=False)["input_ids"])


def train(
    folder: Path,
    model: Path,
    rollouts: Rollouts,
    *,
    algorithm: str = "grpo",
    steps: int = 1,
    micro_batches: int = 4,
    change: Callable[[Any], None] | None = None,
    attention_dropout: float = 0.0,
    **options: Any,
) -> Steps:
    """Some optimizer steps of GRPOTrainer or RLOOTrainer with their own options. change: called with the trainer before it starts.

    micro_batches: of a generation batch; the accumulation, and with it steps_per_generation, is as many unless options say otherwise.
    """
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa", attention_dropout=attention_dropout)
    script = Script(rollouts, tokenizer)
    config_class, trainer_class = (RLOOConfig, RLOOTrainer) if algorithm == "rloo" else (GRPOConfig, GRPOTrainer)
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": len(rollouts.answers) * GROUP // micro_batches,
        "gradient_accumulation_steps": micro_batches,
        "num_generations": GROUP,
        "max_completion_length": LENGTH,
        "max_steps": steps,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "shuffle_dataset": False,
        "disable_dropout": attention_dropout == 0.0,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    kept = Steps()
    more: dict[str, Any] = {}
    if algorithm == "grpo":

        def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
            prompt_ids = trainer._tokenize_prompts(prompts)[0]
            completion_ids, logprobs = script(prompt_ids)
            return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}

        more["rollout_func"] = rollout_func
    trainer = trainer_class(
        model=loaded,
        reward_funcs=[first, second][: len(rollouts.rewards)],
        args=config_class(**(values | options)),
        train_dataset=Dataset.from_list(rollouts.rows()),
        processing_class=tokenizer,
        callbacks=[Take(kept)],
        **more,
    )
    if algorithm == "rloo":
        trainer._generate_single_turn = lambda prompt_ids, images, multimodal_fields: script(prompt_ids)[0]
    if change is not None:
        change(trainer)
    trainer.train()
    return kept
