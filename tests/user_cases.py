"""Whole runs for the user cases: files a user would write, the real command line, and what the run left."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from models_for_tests import tiny_model
from programs import TESTS, Done, Programs
from safetensors.torch import load_file
from table_model import word_tokenizer
from tokenizers import processors
from transformers import GenerationConfig

PATHS = [str(TESTS), str(TESTS / "contracts" / "plugin"), str(TESTS / "cases" / "plugin")]
BASE = [
    *("experiment=none", "model=random_tiny", "data=files", "data.path=tasks.jsonl", "data.eval_size=0", "data.shuffle=false", "evaluation=none"),
    *("rollout.prompts_per_batch=1", "rollout.max_completion_length=16"),
    *("reward=[]", "algorithm.scale_rewards=none", "tracker.rollout_steps=1"),
    *("optimizer=sgd", "optimizer.learning_rate=0.1", "optimizer.schedule=constant", "optimizer.max_grad_norm=null", "trainer.max_steps=1", "run.name=r"),
    *("trainer.tokens_per_microbatch=1000",),
]
"""one step of plain gradient descent; later overrides beat these"""


class Run:
    """A run folder and how its program ended."""

    def __init__(self, folder: Path, done: Done) -> None:
        self.folder, self.done = folder, done

    def lines(self, split: str = "train") -> list[dict[str, Any]]:
        """The lines of metrics.jsonl of a split."""
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if line["split"] == split]

    def metrics(self, step: int = 1) -> dict[str, Any]:
        """The metrics of a training step."""
        (line,) = [line for line in self.lines() if line["step"] == step]
        return line

    def rollouts(self, step: int = 1, split: str = "step") -> dict[str, list[Any]]:
        """A file of rollouts: column -> values."""
        return pq.read_table(self.folder / "rollouts" / f"{split}_{step:06d}.parquet").to_pydict()

    def json(self, name: str) -> dict[str, Any]:
        """status.json or summary.json."""
        return json.loads((self.folder / name).read_text())

    @property
    def config(self) -> dict[str, Any]:
        """config.yaml."""
        return yaml.safe_load((self.folder / "config.yaml").read_text())

    def weights(self, checkpoint: str = "latest") -> dict[str, torch.Tensor]:
        """The trained weights of a checkpoint."""
        return load_file(self.folder / "checkpoints" / checkpoint / "weights" / "policy.safetensors")


class Case:
    """A user's folder with tasks, answers and rewards, and the command line in it."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        self.programs, self.folder = programs, folder

    def tasks(self, *tasks: dict[str, Any]) -> None:
        """tasks.jsonl"""
        (self.folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))

    def answers(self, *of_tasks: Sequence[Any]) -> None:
        """answers.json for generation=scripted: for each task a list of answers, each a list of ids or a dict (tests/scripted.py)."""
        answers = [[answer if isinstance(answer, dict) else {"ids": answer} for answer in of_task] for of_task in of_tasks]
        (self.folder / "answers.json").write_text(json.dumps({"answers": answers}))

    def rewards(self, code: str) -> None:
        """my_rewards.py"""
        (self.folder / "my_rewards.py").write_text(code)

    def scores(self, *values: float | None) -> None:
        """my_rewards.py:score gives these values, in the order of the rollouts."""
        self.rewards(f"def score(completions):\n    return ({list(values)!r} * len(completions))[: len(completions)]\n")

    def table(self, name: str = "table.json", **spec: Any) -> list[str]:
        """A table model; returns the overrides that choose it."""
        (self.folder / name).write_text(json.dumps(spec))
        return ["model=table", f"model.path={name}"]

    def train(
        self,
        *overrides: str,
        generator: str = "scripted",
        terms: dict[str, float] | None = None,
        where: str = "out",
        code: int = 0,
        env: dict[str, str] | None = None,
    ) -> Run:
        """python -m rlexp.train, with BASE in front.

        terms: functions of my_rewards.py with their weights; None: score. where: folder of its outputs. code: the exit code it must have.
        """
        generation = [f"generation={generator}", *(["generation.path=answers.json"] if generator == "scripted" else [])]
        rewards = [f"+reward.terms.{name}={{name: custom, path: my_rewards.py:{name}, weight: {weight}}}" for name, weight in (terms or {"score": 1.0}).items()]
        environment = {"RLEXP_OUTPUTS": str(self.folder / where), "PYTHONPATH": os.pathsep.join(PATHS), **(env or {})}
        done = self.programs.train(*BASE, *generation, *rewards, *overrides, cwd=self.folder, env=environment)
        assert done.code == code, f"exit {done.code}\n{done.out[-3000:]}\n{done.err[-5000:]}"
        return Run(self.folder / where / "r", done)


def one_bos(case: Case, letters_folder: Callable[..., Path], generator: str, *overrides: str) -> None:
    """Case S21: the tokenizer adds a BOS and so does the chat template; a conversation's and a plain prompt's ids hold it once."""
    template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}d{% endif %}"
    adds = processors.TemplateProcessing(single="a $A", pair="a $A $B", special_tokens=[("a", 1)])
    folder = letters_folder(eos_ids=[9], eos=9, pad=0, bos=1, hidden=64, chat_template=template, post_processor=adds)
    case.tasks({"prompt": [{"role": "user", "content": "bc"}]}, {"prompt": "bcd"})
    case.rewards("def score(completions):\n    return [1.0] * len(completions)\n")
    small = ["algorithm.num_generations=2", "rollout.prompts_per_batch=2", "rollout.max_completion_length=2"]
    run = case.train("model=hub", f"model.path={folder}", *small, *overrides, generator=generator)
    assert run.rollouts()["prompt_ids"] == [[1, 2, 3, 4]] * 4


@pytest.fixture
def case(programs: Programs, tmp_path: Path) -> Case:
    """A user's folder."""
    return Case(programs, tmp_path)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 as it comes from the hub, float32, whose config asks for dropout."""
    folder = tmp_path_factory.mktemp("model") / "small"
    loaded = tiny_model(hidden=16, layers=1, dtype=torch.float32, spread=3.0)
    loaded.module.config.attention_dropout = 0.4
    loaded.module.generation_config = GenerationConfig(eos_token_id=loaded.tokenizer.eos_token_id, pad_token_id=loaded.tokenizer.pad_token_id)
    loaded.module.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def letters_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes model folders: a small Qwen3 over a few letters, one token each, always with the same weights."""

    def make(
        *,
        eos_ids: list[int],
        eos: int,
        pad: int,
        bos: int | None = None,
        letters: str = "pabcdefghi",
        hidden: int = 16,
        uniform: bool = False,
        chat_template: str | None = None,
        post_processor: Any = None,
        **generation: Any,
    ) -> Path:
        """eos_ids, generation: of generation_config.json. eos, pad, bos: of the tokenizer. uniform: every next token is equally likely."""
        folder = tmp_path / f"letters-{'-'.join(map(str, [*eos_ids, eos, pad]))}"
        loaded = tiny_model(vocab=len(letters), hidden=hidden, layers=1, dtype=torch.float32)
        if uniform:
            torch.nn.init.zeros_(loaded.module.lm_head.weight)
        loaded.module.config.eos_token_id, loaded.module.config.pad_token_id = eos, pad
        loaded.module.generation_config = GenerationConfig(eos_token_id=eos_ids, pad_token_id=pad, **generation)
        loaded.module.save_pretrained(folder)
        tokenizer = word_tokenizer(list(letters), eos=eos, pad=pad)
        if bos is not None:
            tokenizer.bos_token = letters[bos]
        if post_processor is not None:
            tokenizer.backend_tokenizer.post_processor = post_processor
        tokenizer.chat_template = chat_template
        tokenizer.save_pretrained(folder)
        return folder

    return make
