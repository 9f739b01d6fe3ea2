"""What a user gets wrong: one message that names the key and the fix, exit code 1, no traceback, and no run folder unless something was trained."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from models_for_tests import tiny_model
from programs import Programs
from run_folders import status
from small_runs import SMALL, Cli, options

TASK = {"prompt": "1+2=", "answer": "3"}
UNLOADABLE = ["model=hub", "model.path=nobody/nothing"]
"""a model that cannot be had, so that what is said about data or rewards is said before a model is loaded"""
FILES = ["data=files", "data.path=tasks.jsonl", "data.eval_size=2"]
REWARDS = """
import sys
def short(completions): return [1.0]
def one_too_many(completions): return [1.0] * (len(completions) + 1)
def raises(completions): raise ValueError("no such answer")
def leaves(completions): sys.exit(3)
def fine(completions): return [float(len(text[-1]["content"])) for text in completions]
def needs(completions, solution): return [0.0] * len(completions)
async def raises_async(completions): raise ValueError("no such answer")
"""


def lines(*rows: object) -> str:
    """The text of a jsonl file; a str is a line as it is."""
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def reward(function: str, *more: str) -> list[str]:
    """Overrides that choose a function of REWARDS."""
    return ["reward=[custom]", f"reward.terms.custom.path=my_rewards.py:{function}", *more]


@dataclass
class Mistake:
    """overrides: of the command. says: what the message must hold. tasks: contents of tasks.jsonl. env: of the program.

    trained: whether it comes up only when something has been trained or evaluated, so that the folder stays, with status failed.
    """

    name: str
    overrides: list[str]
    says: list[str]
    tasks: str = field(default_factory=lambda: lines(*[TASK] * 12))
    env: dict[str, str] = field(default_factory=dict)
    trained: bool = False


CONFIG = [
    Mistake("loss", ["loss=sap0"], ["loss=sap0: no such option; did you mean "]),
    Mistake("key", ["loss.epsilonn=1"], ["loss.epsilonn: unknown key; did you mean loss.epsilon"]),
    Mistake("added_key", ["+loss.foo=1"], ["loss.foo: unknown key; loss has delta, "]),
    Mistake("tokens", ["trainer.tokens_per_microbatch=-5"], ["trainer.tokens_per_microbatch=-5 is out of range: it must be >= 8"]),
    Mistake("generations", ["algorithm.num_generations=1"], ["algorithm.num_generations=1 is out of range", "at least two rollouts"]),
    Mistake("top_p", ["generation.top_p=1.5"], ["generation.top_p=1.5 is out of range: it must be > 0 and <= 1"]),
    Mistake("epsilon", ["loss.epsilon=-0.1"], ["loss.epsilon=-0.1 is out of range: it must be >= 0"]),
    Mistake("all_at_once", ["loss=sap0", "loss.epsilon=-0.1", "+loss.foo=1"], ["3 problems", "loss=sap0", "loss.epsilon=-0.1", "loss.foo"]),
    Mistake("path_not_set", ["data=files"], ["data.path is not set"]),
    Mistake("few_tasks", ["data.size=3", "rollout.prompts_per_batch=8"], ["3 training tasks", "rollout.prompts_per_batch=8"]),
    Mistake("few_lines", [*FILES, "rollout.prompts_per_batch=8"], ["data has 1 training tasks", "rollout.prompts_per_batch=8"], tasks=lines(*[TASK] * 3)),
    Mistake("generation_argument", ["generation.generation_kwargs={foo: 1}"], ["generation.generation_kwargs", "foo"]),
    Mistake("no_start", ["run.start_from=gone"], ["run.start_from=gone is no folder", "checkpoints/latest"]),
    Mistake("no_start_dry", ["run.start_from=gone", "run.dry=true"], ["run.start_from=gone is no folder"]),
    Mistake("two_processes", ["strategy=single", "cluster.processes_per_node=2"], ["cluster.processes_per_node=2", "strategy=ddp"]),
    Mistake("two_ranks", [], ["strategy=single", "WORLD_SIZE", "strategy=ddp"], env={"RANK": "0", "WORLD_SIZE": "2"}),
    Mistake("sweep_of_ranks", ["run.seed=1,2", "-m"], ["-m starts a sweep", "rank 1 of 2", "leave out -m"], env={"RANK": "1", "WORLD_SIZE": "2"}),
    Mistake("must", ["run.resume=must"], ["run.resume=must", "no run to continue"]),
    Mistake("outputs", [], ["the run folder", "cannot be written", "RLEXP_OUTPUTS"], env={"RLEXP_OUTPUTS": "tasks.jsonl"}),
    Mistake("outputs_of_a_sweep", ["run.seed=1,2", "-m"], ["the sweep's folder", "cannot be written", "RLEXP_OUTPUTS"], env={"RLEXP_OUTPUTS": "tasks.jsonl"}),
]
DATA = [
    Mistake("empty", FILES, ["data.path=tasks.jsonl has no rows"], tasks=""),
    Mistake(
        "no_prompt", FILES, ["data.prompt_column=prompt", "no such column (columns: answer, question)"], tasks=lines(*[{"question": "1", "answer": "2"}] * 9)
    ),
    Mistake("null_prompt", FILES, ["has no prompt", "data.prompt_column"], tasks=lines(*[TASK] * 9, {"prompt": None, "answer": "3"})),
    Mistake("bad_line", FILES, ["data.path: tasks.jsonl:2 is not JSON"], tasks=lines(TASK, '{"prompt": ', TASK, TASK)),
    Mistake("no_file", [*FILES, "data.path=nothing.jsonl"], ["data.path=nothing.jsonl: no such file"]),
    Mistake("few_rows", [*FILES, "data.path=.", "rollout.prompts_per_batch=16"], ["10 training tasks", "rollout.prompts_per_batch=16"]),
    Mistake("no_hub_data", ["data=hub", "data.path=nobody/nothing"], ["data.path=nobody/nothing", "not in the cache", "local folder"]),
    Mistake("wrong_start", ["run.start_from=."], ["run.start_from=. is no checkpoint", "checkpoints/step_000010"]),
    Mistake("no_function", reward("need"), ["reward.terms.custom", "no function need", "did you mean needs"]),
    Mistake("no_column", reward("needs"), ["reward.terms.custom asks for 'solution'", "columns: answer"]),
    Mistake("no_column_shipped", ["reward=[accuracy]"], ["reward.terms.accuracy asks for 'solution'", "columns: answer"]),
]
MODEL = [
    Mistake("no_model", UNLOADABLE, ["model.path=nobody/nothing", "HF_HUB_OFFLINE", "give a local folder"]),
    Mistake("long_prompt", FILES, ["training task", "200 > 64", "data.overlong_prompt=drop"], tasks=lines(*[TASK] * 9, *[{**TASK, "prompt": "1+" * 100}] * 9)),
    Mistake("no_template", ["model=hub", "model.path=plain"], ["no chat template", "model.chat_template=FILE"]),
    Mistake("row", ["trainer.tokens_per_microbatch=9"], ["18 > 9", "trainer.tokens_per_microbatch", "trainer.oversize_samples=drop"]),
    Mistake("stop_ids", ["generation.stop_ids=[3,99999]"], ["generation.stop_ids=[99999] are no tokens of the model"]),
    Mistake("targets", ["peft=lora", "peft.targets=[nope]"], ["peft.targets: nope fits no layer"]),
    Mistake("template_argument", ["generation.chat_template_kwargs={tokenize: true}"], ["generation.chat_template_kwargs", "tokenize"]),
]
REWARD = [
    Mistake("too_few", reward("short"), ["reward 'custom' returned 1 values, expected 2", "reward.terms.custom"], trained=True),
    Mistake("too_many", reward("one_too_many", "evaluation=none"), ["returned 9 values, expected 8", "reward.terms.custom"], trained=True),
    Mistake("raises", reward("raises"), ["raised ValueError: no such answer", "my_rewards.py:5", "reward.on_error=none", "reward.terms.custom"], trained=True),
    Mistake("leaves", reward("leaves"), ["raised SystemExit: 3", "reward.terms.custom"], trained=True),
    Mistake("raises_async", reward("raises_async"), ["raised ValueError: no such answer", "reward.terms.custom"], trained=True),
]


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder whose tokenizer has no chat template."""
    folder = tmp_path_factory.mktemp("plain")
    loaded = tiny_model(hidden=16, layers=1)
    loaded.tokenizer.chat_template = None
    loaded.module.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory, programs: Programs, plain_model: Path) -> Cli:
    """A user's folder with rewards, a model and (written by each test) tasks."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "my_rewards.py").write_text(REWARDS)
    (folder / "plain").symlink_to(plain_model)
    return Cli(programs, folder)


@pytest.mark.rows("GRPO-115", "GRPO-256", "GRPO-258", "GRPO-259", "GRPO-261", "GRPO-262")
@pytest.mark.parametrize("mistake", [*CONFIG, *DATA, *MODEL, *REWARD], ids=lambda mistake: mistake.name)
def test_one_clear_message(mistake: Mistake, user: Cli) -> None:
    (user.folder / "tasks.jsonl").write_text(mistake.tasks)
    overrides = [*(UNLOADABLE if mistake in DATA else []), "trainer.max_steps=1", f"run.name={mistake.name}", *mistake.overrides]
    done = user.train(*overrides, env=mistake.env)
    assert done.code == 1 and "Traceback" not in done.err + done.out, done.err
    said = done.err[done.err.index("error: ") :]
    assert done.err.count("error: ") == 1 and all(text in said for text in mistake.says), done.err
    assert (mistake in CONFIG) == done.err.startswith("error: "), "nothing is begun by a command line that is wrong"
    folder = user.out / mistake.name
    if not mistake.trained:
        assert not folder.exists()
        return
    assert status(folder)["status"] == "failed" and status(folder)["reason"] == said.strip().removeprefix("error: ") and status(folder)["exit_code"] == 1
    assert not (folder / "lock").exists() and "Traceback" in (folder / "train.log").read_text()


def test_the_corrected_command_finds_its_name_free(user: Cli) -> None:
    (user.folder / "tasks.jsonl").write_text(lines(*[TASK] * 12))
    assert user.train(*FILES, "data.path=task.jsonl", "trainer.max_steps=1").code == 1
    assert user.train(*FILES, "trainer.max_steps=1").code == 0


def test_a_metric_that_no_evaluation_has_is_told(user: Cli) -> None:
    """A reward may log metrics of its own, so that only the first evaluation knows."""
    done = user.train(*reward("fine"), "checkpoint.metric=acuracy", "trainer.max_steps=1", "run.name=metric")
    assert done.code == 0 and "warning: checkpoint.metric=acuracy is no metric of this evaluation" in done.err and "accuracy" in done.err, done.err


def test_the_environment_alone_is_no_mistake(user: Cli) -> None:
    """RLEXP_OUTPUTS may name a folder that does not exist yet, also below others."""
    (user.folder / "tasks.jsonl").write_text(lines(*[TASK] * 12))
    done = user.programs.train(*options(SMALL, [*FILES, "trainer.max_steps=1"]), cwd=user.folder, env={"RLEXP_OUTPUTS": os.path.join("a", "b")})
    assert done.code == 0 and status(user.folder / "a" / "b" / "r")["status"] == "finished"
