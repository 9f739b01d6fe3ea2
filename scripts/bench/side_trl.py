"""The TRL side: its own GRPOTrainer, hooked at the same four places as rlexp's loop, and the search for its fastest per-device batch."""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import numpy as np
import torch
from datasets import Dataset
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from scripts.bench.recorder import Recorder, Stop, now
from scripts.bench.reward import spread
from scripts.bench.side_rlexp import RATE, STEPS
from scripts.bench.workloads import THREADS, Workload

TRIALS = 2
"""updates of a per-device batch that count in the search, where they are short"""


def options(workload: Workload, scratch: Path, batch: int, rollouts: int) -> GRPOConfig:
    """TRL's arguments: its defaults, but for what makes both sides do the same work."""
    cuda = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(scratch / "trl"),
        use_cpu=not cuda,
        bf16=cuda,
        gradient_checkpointing=False,
        disable_dropout=True,
        loss_type="dapo",
        beta=workload.beta,
        num_iterations=workload.iterations,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=rollouts // batch,
        num_generations=workload.generations,
        max_completion_length=workload.max_new,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_steps=STEPS,
        shuffle_dataset=False,
        model_init_kwargs=None if workload.lora_rank else {"dtype": "float32"},
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )


class _Optimized(TrainerCallback):
    """Calls back after each optimizer step."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def on_optimizer_step(self, *arguments: Any, **named: Any) -> None:
        """The optimizer has stepped, the gradient is still there."""
        self.call()


def trainer_for(workload: Workload, inputs: Path, arguments: GRPOConfig) -> Any:
    """TRL's GRPOTrainer on the prepared inputs; Any, because its methods are replaced."""
    model: Any = str(inputs / "model")
    if workload.lora_rank:
        from peft import PeftModel

        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        model = PeftModel.from_pretrained(base, str(inputs / "adapter"), is_trainable=True)
    tokenizer = AutoTokenizer.from_pretrained(inputs / "model", padding_side="left")
    rows = Dataset.from_json(str(inputs / "prompts.jsonl"), cache_dir=f"{arguments.output_dir}/cache")
    reward: Any = spread
    return GRPOTrainer(model=model, reward_funcs=reward, args=arguments, train_dataset=rows, processing_class=tokenizer)


def listen(trainer: Any, recorder: Recorder) -> None:
    """Hook the recorder into TRL's loop."""
    make, generate, score, forward = (
        trainer._generate_and_score_completions,
        trainer._generate,
        trainer._calculate_rewards,
        trainer._get_per_token_logps_and_entropies,
    )

    def batch(inputs: Any) -> Any:
        recorder.arrive()
        return make(inputs)

    def generated(prompts: Any) -> Any:
        since = now()
        found = generate(prompts)
        recorder.generated(since)
        tokens = sum(len(ids) for ids in found[1])
        recorder.count("generated", tokens)
        recorder.count("trained", tokens * trainer.num_iterations)
        return found

    def scored(*arguments: Any) -> Any:
        found = score(*arguments)
        recorder.rewarded()
        return found

    def forwarded(model: Any, input_ids: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if torch.is_grad_enabled():
            recorder.count("forwarded", input_ids.numel())
            recorder.count("micro_batches", 1)
        return forward(model, input_ids, *arguments, **named)

    trainer._generate_and_score_completions = batch
    trainer._generate, trainer._calculate_rewards = generated, scored
    trainer._get_per_token_logps_and_entropies = forwarded
    trainer.add_callback(_Optimized(recorder.optimized))


def recorded(scratch: Path) -> list[list[int]]:
    """The completions that rlexp sampled first."""
    kept = np.load(scratch / "completions.npz")
    return [part.tolist() for part in np.split(kept["ids"], np.cumsum(kept["lengths"])[:-1])]


def main(pipe: Connection, workload: Workload, inputs: Path, scratch: Path, batch: int, compare: bool) -> None:
    """Run until told to stop. compare: the first batch is generated, then replaced by rlexp's, and its gradient compared with rlexp's."""
    torch.set_num_threads(THREADS)
    trainer = trainer_for(workload, inputs, options(workload, scratch, batch, workload.rollouts))
    recorder = Recorder(pipe)
    if compare:
        compare_first(trainer, recorder, scratch)
    listen(trainer, recorder)
    recorder.ready(parameters=sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad))
    with contextlib.suppress(Stop):
        trainer.train()


def compare_first(trainer: Any, recorder: Recorder, scratch: Path) -> None:
    """In the first batch rlexp's completions take the place of the sampled ones, and `cosine` and `norm_ratio` of the gradients are recorded."""
    generate, clip = trainer._generate_single_turn, trainer.accelerator.clip_grad_norm_

    def generated(*arguments: Any, **named: Any) -> Any:
        generate(*arguments, **named)
        trainer._generate_single_turn = generate
        return recorded(scratch), None

    def clipped(*arguments: Any, **named: Any) -> Any:
        trainer.accelerator.clip_grad_norm_ = clip
        cosine, ratio = agreement(trainer.accelerator.unwrap_model(trainer.model), scratch / "gradient.safetensors")
        recorder.count("cosine", cosine)
        recorder.count("norm_ratio", ratio)
        return clip(*arguments, **named)

    trainer._generate_single_turn, trainer.accelerator.clip_grad_norm_ = generated, clipped


def agreement(model: torch.nn.Module, file: Path) -> tuple[float, float]:
    """Cosine of a model's gradient and a saved one, and the ratio of their norms. Raises ValueError when they are of other parameters."""
    dot = mine = theirs = 0.0
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    with safe_open(file, framework="pt") as saved:
        if set(saved.keys()) != set(gradients):
            raise ValueError(f"the gradients are of different parameters: {sorted(set(saved.keys()) ^ set(gradients))[:6]}")
        for name, gradient in gradients.items():
            a, b = gradient.double().cpu(), saved.get_tensor(name).double()
            dot, mine, theirs = dot + float((a * b).sum()), mine + float((a * a).sum()), theirs + float((b * b).sum())
    return dot / (mine * theirs) ** 0.5, (mine / theirs) ** 0.5


def search(pipe: Connection, workload: Workload, inputs: Path, scratch: Path) -> None:
    """A process of its own: sends (per-device batch, seconds of an update for each rollout) for one size after the other, on rlexp's completions."""
    torch.set_num_threads(THREADS)
    completions = recorded(scratch)
    updates = TRIALS if workload.full_trials else 1
    for number, size in enumerate(workload.trl_batches):
        count = workload.trial_rollouts(size)
        found = trial(workload, inputs, scratch, size, padded(completions, count), updates, warm_up=number == 0)
        pipe.send((size, statistics.median(found) / count))
        gc.collect()


def padded(completions: list[list[int]], count: int) -> list[list[int]]:
    """The first completions, one of them made as long as the longest of all: TRL pads the whole batch to that."""
    chosen = [list(ids) for ids in completions[:count]]
    longest = max(map(len, completions))
    if max(map(len, chosen)) < longest:
        chosen[0] = (chosen[0] * longest)[:longest]
    return chosen


def trial(workload: Workload, inputs: Path, scratch: Path, size: int, completions: list[list[int]], updates: int, warm_up: bool) -> list[float]:
    """Seconds of updates on given completions."""
    trainer = trainer_for(workload, inputs, options(workload, scratch, size, len(completions)))
    trainer._generate_single_turn = lambda *arguments, **named: (completions, None)
    score = trainer._calculate_rewards
    found: list[float] = []
    began = [0.0]

    def scored(*arguments: Any) -> Any:
        values = score(*arguments)
        began[0] = now()
        return values

    def optimized() -> None:
        if trainer._step % (trainer.args.steps_per_generation * workload.iterations) == 0:
            found.append(now() - began[0])
        if len(found) == updates + warm_up:
            raise Stop

    trainer._calculate_rewards = scored
    trainer.add_callback(_Optimized(optimized))
    with contextlib.suppress(Stop):
        trainer.train()
    return found[warm_up:]
