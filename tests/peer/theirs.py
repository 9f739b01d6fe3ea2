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
from peer.rollouts import LENGTH, Rollouts, first, second
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

TRAINERS: dict[str, tuple[Any, Any]] = {"grpo": (GRPOConfig, GRPOTrainer), "rloo": (RLOOConfig, RLOOTrainer), "sdpo": (SDPOConfig, SDPOTrainer)}


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

    def __call__(self, prompts_ids: list[list[int]]) -> dict[str, list[list[Any]]]:
        """What a rollout_func returns; the n-th time that a prompt comes it gets answer n."""
        seen: Counter[int] = Counter()
        places = []
        for ids in prompts_ids:
            task = self.tasks[tuple(ids)]
            places.append((task, seen[task] % self.rollouts.group))
            seen[task] += 1
        made: dict[str, list[list[Any]]] = {"prompt_ids": prompts_ids, "completion_ids": [self.answers[task][number] for task, number in places]}
        given, trained = self.rollouts.logprobs, self.rollouts.trained
        made["logprobs"] = [[-2.0] * len(self.answers[task][number]) if given is None else list(given[task][number]) for task, number in places]
        if trained is not None:
            made["env_mask"] = [[int(token) for token in trained[task][number]] for task, number in places]
        return made


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
    weights: dict[str, torch.Tensor] | None = None,
    **options: Any,
) -> Steps:
    """Some optimizer steps of GRPOTrainer, RLOOTrainer or SDPOTrainer with their own options. change: called with the trainer before it starts.

    micro_batches: of a generation batch; the accumulation, and with it steps_per_generation, is as many unless options say otherwise. weights: loaded into
    the model before the trainer gets it.
    """
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa", attention_dropout=attention_dropout)
    if weights is not None:
        loaded.load_state_dict(weights)
    script = Script(rollouts, tokenizer)
    config_class: Any
    trainer_class: Any
    config_class, trainer_class = TRAINERS[algorithm]
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": len(rollouts.answers) * rollouts.group // micro_batches,
        "gradient_accumulation_steps": micro_batches,
        "num_generations": rollouts.group,
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
        more["rollout_func"] = lambda prompts, trainer: script(trainer._tokenize_prompts(prompts)[0])
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
        trainer._generate_single_turn = lambda prompt_ids, images, multimodal_fields: script(prompt_ids)["completion_ids"]
    if algorithm == "sdpo":
        trainer._generate = lambda prompt_ids: (prompt_ids, script(prompt_ids)["completion_ids"])
    if change is not None:
        change(trainer)
    trainer.train()
    return kept
