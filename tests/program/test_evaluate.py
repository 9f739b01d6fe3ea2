"""python -m rlexp.evaluate: what it says about a run equals what the run said about itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models_for_tests import tiny_model
from programs import Done, Programs
from run_folders import metrics
from small_runs import Cli

REWARD = """
def score(completions, completion_ids):
    return [float(sum(ids) % 3 == 0) for ids in completion_ids]
"""
"""right in a third of the cases"""
RUN = ["data.eval_size=8", "evaluation.steps=1", "evaluation.num_generations=4", "checkpoint.keep_last=9", "trainer.max_steps=3", "tracker=none"]


@pytest.fixture(scope="module")
def trained(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A run of three steps, evaluated at each."""
    cli = Cli(programs, tmp_path_factory.mktemp("trained"))
    done = cli.train(*cli.rewards(REWARD), *RUN)
    assert done.code == 0, done.err
    return cli


def said(run: Path, step: int) -> dict[str, Any]:
    """What the run found in its evaluation of a step."""
    (line,) = [line for line in metrics(run) if line["split"] == "eval" and line["step"] == step]
    return {name: value for name, value in line.items() if name not in ("split", "step")}


def found(cli: Cli, *arguments: str, run: str = "run=out/r") -> dict[str, Any]:
    """The metrics of an evaluation, from evaluation.json."""
    done = cli.evaluate(run, *arguments)
    assert done.code == 0, done.err
    written = json.loads((cli.run / "evaluation.json").read_text())
    assert written["overrides"] == [argument for argument in arguments if not argument.startswith("checkpoint=")]
    table = {line.split()[0]: float(line.split()[1]) for line in done.out.splitlines()}
    assert table == pytest.approx({name: math.nan if value is None else value for name, value in written["metrics"].items()}, rel=1e-4, nan_ok=True)
    return written["metrics"]


def test_it_finds_what_the_run_found(trained: Cli) -> None:
    """Greedy accuracy and pass@k of the newest, of a named and of the best checkpoint, to the last bit."""
    assert found(trained) == {"step": 3.0, "tasks": 8.0, **said(trained.run, 3)}
    assert found(trained, "checkpoint=step_000001") == {"step": 1.0, "tasks": 8.0, **said(trained.run, 1)}
    best = json.loads((trained.run / "summary.json").read_text())["best_checkpoint"]
    assert found(trained, "checkpoint=best", run="run=r") == {"step": best["step"], "tasks": 8.0, **said(trained.run, best["step"])}
    assert {"accuracy", "pass@1", "pass@2", "pass@4"} <= said(trained.run, 3).keys() and said(trained.run, 3)["pass@4"] > 0


def test_other_settings_and_other_tasks(trained: Cli) -> None:
    greedy = found(trained, "evaluation.num_generations=0")
    assert greedy["accuracy"] == said(trained.run, 3)["accuracy"] and "pass@1" not in greedy
    assert "pass@8" in found(trained, "evaluation.num_generations=8")
    done = trained.evaluate("run=out/r", "data.eval_size=60")
    assert done.code == 0 and "the run was trained on" in done.err and "of these 60 tasks" in done.err
    (trained.folder / "more.jsonl").write_text("".join(json.dumps({"prompt": f"{n}-1=", "answer": str(n - 1)}) + "\n" for n in range(6)))
    done = trained.evaluate("run=out/r", "data=files", "data.path=more.jsonl", "data.eval_size=5", "reward=[exact_match]")
    assert done.code == 0 and "rewards/exact_match/mean" in done.out and "trained on" not in done.err, done.err


MISTAKES = [
    ([], "usage: python -m rlexp.evaluate run=outputs/NAME"),
    (["run=out/r", "checkpoint"], "not understood: checkpoint"),
    (["run=nothing"], "run=nothing is no run folder"),
    (["run=out/r", "checkpoint=step_000009"], "checkpoint=step_000009 is not there: choose step_000001, step_000002, step_000003, latest"),
    (["run=out/r", "data.eval_size=0"], "set data.eval_size"),
    (["run=out/r", "data.eval_sise=3", "generation.top_p=3"], "2 problems"),
    (["run=out/r", "data=fils"], "data=fils: no such option; did you mean files?"),
    (["run=out/r", "data=files", "data.path=gone.jsonl"], "data.path=gone.jsonl: no such file"),
    (["run=out/r", "run.seed=1,2"], "give single values"),
    (["run=out/r", "model.hidden_size=32"], "do not fit this model"),
    (["run=out/r", "reward=[accuracy]"], "asks for 'solution'"),
]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=lambda value: value[-1] if isinstance(value, list) and value else "")
def test_mistakes_are_one_message(arguments: list[str], says: str, trained: Cli) -> None:
    done = trained.evaluate(*arguments)
    assert done.code == 1 and done.err.startswith("error: ") and says in done.err and "Traceback" not in done.err, done.err


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model in a folder, so that adapters are saved as adapters."""
    folder, loaded = tmp_path_factory.mktemp("model"), tiny_model(hidden=16, layers=1)
    loaded.module.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("peft", [[], ["peft=lora", "peft.r=2"], ["peft=lora", "peft.r=2", "peft.save=merged"]], ids=["full", "adapter", "merged"])
def test_a_run_without_checkpoints_is_evaluated_by_its_final_model(peft: list[str], model: Path, cli: Cli) -> None:
    options = ["model=hub", f"model.path={model}", "checkpoint=none", "evaluation.num_generations=2", "trainer.max_steps=2", *peft]
    done = cli.train(*cli.rewards(REWARD), *options)
    assert done.code == 0, done.err
    assert (cli.run / "model" / "adapter_config.json").exists() == (peft[-1:] == ["peft.r=2"])
    told, now = said(cli.run, 2), found(cli)
    assert now.pop("step") == 2 and now.pop("tasks") == 2 and now.keys() == told.keys()
    assert now == (pytest.approx(told, abs=1e-6) if peft[-1:] == ["peft.save=merged"] else told)


def test_a_run_that_never_came_to_a_checkpoint(cli: Cli) -> None:
    assert cli.train("trainer.max_steps=2", env={"RLEXP_FAULT": "0:backward:before"}).code == -9
    done = cli.evaluate("run=out/r")
    assert done.code == 1 and "has neither checkpoints nor a final model yet" in done.err


def test_help_fits_a_screen(trained: Cli) -> None:
    done: Done = trained.evaluate("--help")
    assert done.code == 0 and done.out.startswith("usage: python -m rlexp.evaluate run=outputs/NAME") and len(done.out.splitlines()) < 24


def test_several_policies(programs: Programs, tmp_path: Path, model: Path) -> None:
    """Two agents with a policy each: the checkpoint holds both, and so does model/."""
    cli = Cli(programs, tmp_path)
    agents: Callable[..., Done] = lambda *more: cli.train("algorithm=contract_agents", "trainer.max_steps=1", "trainer.steps_per_batch=1", *more)  # noqa: E731
    assert agents().code == 0
    assert found(cli) == {"step": 1.0, "tasks": 2.0, **said(cli.run, 1)}
    assert agents("checkpoint=none", "run.resume=never").code == 0
    assert found(cli) == {"step": 1.0, "tasks": 2.0, **said(cli.run, 1)}
