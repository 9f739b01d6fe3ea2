"""Numbers that follow from a config: steps, names, plan, warnings. Literal values are those of the public cases."""

from __future__ import annotations

import re

import pytest

from rlexp.config import derived
from rlexp.config.advice import warnings
from rlexp.config.differences import differences
from rlexp.config.names import LONGEST, job_name, name_problem, run_name, safe_name, sweep_name
from rlexp.config.plan import plan_text
from rlexp.config.validate import problems


@pytest.mark.cases("S13")
@pytest.mark.rows("GRPO-006", "GRPO-094")
@pytest.mark.parametrize("generations", [4, 8])
def test_steps_of_one_epoch(quick_run, generations):
    config = quick_run(
        "experiment=none", "rollout.prompts_per_batch=2", "trainer.steps_per_batch=2", "algorithm.num_iterations=2", f"algorithm.num_generations={generations}"
    )
    assert derived.schedule(config, 8).steps == 16


@pytest.mark.cases("S28")
@pytest.mark.rows("GRPO-006", "GRPO-094")
@pytest.mark.parametrize("generations", [4, 8])
@pytest.mark.parametrize(
    ("tasks", "overrides", "steps", "left_over"),
    [
        (10, ["rollout.prompts_per_batch=4", "trainer.epochs=2"], 4, 2),
        (9, ["rollout.prompts_per_batch=3", "trainer.steps_per_batch=2", "algorithm.num_iterations=2"], 12, 0),
        (9, ["rollout.prompts_per_batch=3", "trainer.max_steps=5"], 5, 0),
        (10, ["rollout.prompts_per_batch=5", "trainer.epochs=0.1"], 1, 0),
        (30, ["rollout.prompts_per_batch=3", "trainer.epochs=0.3"], 3, 0),
    ],
)
def test_steps_do_not_depend_on_the_rollouts_per_task(quick_run, tasks, overrides, steps, left_over, generations):
    config = quick_run("experiment=none", f"algorithm.num_generations={generations}", *overrides)
    numbers = derived.schedule(config, tasks)
    assert (numbers.steps, numbers.left_over) == (steps, left_over)
    assert ("2 of 10 prompts per epoch do not fill a batch" in " ".join(warnings(config, tasks))) == (left_over == 2)


def test_unknown_number_of_tasks(quick_run):
    config = quick_run("experiment=none", "data=hub", "data.path=x")
    assert derived.task_count(config) is None
    assert derived.schedule(config, None).steps is None
    assert "optimizer steps     unknown until the data are loaded" in plan_text(config)
    assert "optimizer steps     12" in plan_text(config, 96)


@pytest.mark.cases("S29")
def test_fewer_tasks_than_one_batch(quick_run, tmp_path):
    message = "data has 3 training tasks, fewer than rollout.prompts_per_batch=4: no batch would ever be full; set rollout.prompts_per_batch=3 or less"
    config = quick_run("experiment=none", "data.size=3", "rollout.prompts_per_batch=4")
    assert problems(config)[0].startswith(message)
    assert derived.too_few_tasks(config, 3).startswith(message)
    assert derived.too_few_tasks(config, 4) is None
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "a", "answer": "b"}\n' * 3 + "\n")
    from_file = ["data=files", f"data.path={tasks}", "data.eval_size=0"]
    assert problems(quick_run("experiment=none", "rollout.prompts_per_batch=4", *from_file))[0].startswith(message)
    assert problems(quick_run("experiment=none", "rollout.prompts_per_batch=3", *from_file)) == []


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        (["data=addition", "data.size=50"], 50),
        (["data=addition", "data.digits=1", "data.eval_size=60"], 40),  # 100 pairs of digits exist
        (["data=addition", "data.digits=1", "data.eval_size=100"], None),
        (["data=reasoning_gym"], None),  # questions that are held out drop from the training tasks
    ],
)
def test_task_counts_known_from_the_config(quick_run, overrides, count):
    assert derived.task_count(quick_run("experiment=none", *overrides)) == count


def test_epsilon_and_accuracy_that_apply(quick_run):
    config = quick_run("reward=[think_format,exact_match]", "loss.epsilon=0.1")
    assert (derived.epsilon_high(config), derived.accuracy_term(config), derived.evaluates(config)) == (0.1, "think_format", True)
    config = quick_run("reward=[think_format,exact_match]", "loss.epsilon_high=0.28", "evaluation.accuracy=exact_match", "evaluation=none")
    assert (derived.epsilon_high(config), derived.accuracy_term(config), derived.evaluates(config)) == (0.28, "exact_match", False)


def test_run_name(quick_run):
    assert run_name(quick_run()) == "addition-grpo-dapo-tiny-s42"
    assert run_name(quick_run("experiment=gsm8k", "loss=grpo", "run.seed=1")) == "gsm8k-grpo-grpo-Qwen3-0.6B-s1"
    assert run_name(quick_run("model=hub", 'model.path="/data/my models/a=b/"')) == "addition-grpo-dapo-a=b-s42"
    assert run_name(quick_run("run.name=mine")) == "mine"
    long = run_name(quick_run("model=hub", f"model.path={'x' * 200}"))
    assert len(long.encode()) == LONGEST and long != run_name(quick_run("model=hub", f"model.path={'x' * 201}"))


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "ä", "a b", "x" * 121, ""])
def test_a_name_that_is_no_safe_folder_is_refused(quick_run, name):
    assert name_problem(name) is not None
    config = quick_run()
    config.run.name = name
    assert len(problems(config)) == 1 and problems(config)[0].startswith(f"run.name={name} must be letters, digits and ._=-")
    assert name_problem(safe_name(name)) is None


@pytest.mark.cases("S37")
def test_names_of_jobs_and_sweeps():
    first = job_name(["reward=[math]", 'data.path="runs/a=b"'])
    second = job_name(["reward=[math,length]", 'data.path="runs/a=b"'])
    assert first.startswith("path=runs_a=b-reward=math-") and second.startswith("path=runs_a=b-reward=math_length-")
    assert first != second
    for name in (
        first,
        second,
        job_name([]),
        job_name([f"run.name={'x' * 300}"]),
        job_name(["data.system_prompt='ä/ö {x}, \"y\"'"]),
        sweep_name(None, ["a=1,2"]),
    ):
        assert re.fullmatch(r"[A-Za-z0-9._=-]{1,120}", name), name
        assert name_problem(name) is None
    assert re.fullmatch(r"loss=dapo-seed=1-[0-9a-f]{6}", job_name(["loss=dapo", "run.seed=1"]))


def test_names_depend_on_what_a_job_computes_only():
    overrides = ["loss=dapo", "run.seed=1"]
    assert job_name(overrides) == job_name([*reversed(overrides), "sweep.jobs=2", "run.resume=never", "hydra.verbose=true", "hydra/launcher=basic"])
    assert job_name(overrides) != job_name(["loss=dapo", "run.seed=2"])
    assert job_name(["a.x=1"]) != job_name(["b.x=1"])  # the short form is equal, the hash is not
    assert sweep_name(None, ["loss=a,b", "sweep.jobs=2"]) == sweep_name(None, ["loss=a,b"])
    assert sweep_name(None, ["loss=a,b"]) != sweep_name(None, ["loss=a,b", "sweep=loss_seed"])
    assert sweep_name("my sweep", ["loss=a,b"]) == "my_sweep"


def test_differences_from_the_defaults(quick_run):
    config = quick_run("experiment=none", "loss=grpo", "loss.epsilon_high=0.28", "reward=[exact_match,think_format]", "reward.terms.think_format.weight=0.5")
    assert differences(config) == [
        ("reward", ["exact_match", "think_format"], ["exact_match"]),
        ("loss", "grpo", "dapo"),
        ("reward.terms.think_format.weight", 0.5, 1.0),
        ("loss.epsilon_high", 0.28, None),
    ]
    assert differences(quick_run("experiment=none")) == []
    assert ("evaluation.name", "none", "default") in differences(quick_run("evaluation=none"))


@pytest.mark.cases("S11")
@pytest.mark.rows("GRPO-038")
def test_the_plan_says_how_the_ratio_is_bounded(quick_run):
    assert ("importance weight", "at most 5") in derived.plan(quick_run("loss=cispo"), None)
    assert ("ratio clipped to", "0.9997 .. 1.0004") in derived.plan(quick_run("loss=gspo"), None)
    assert not {"importance weight", "ratio clipped to"} & {name for name, _ in derived.plan(quick_run("loss=vespo"), None)}


@pytest.mark.cases("S08")
@pytest.mark.rows("GRPO-049")
@pytest.mark.parametrize(("loss", "warned"), [("dapo", True), ("bnpo", True), ("dr_grpo", True), ("grpo", False), ("cispo", True), ("luspo", False)])
def test_sequence_ratio_with_a_token_sum_names_the_loss(quick_run, train_command, loss, warned):
    overrides = [f"loss={loss}", "loss.importance_sampling_level=sequence"]
    text = f"loss.importance_sampling_level=sequence with loss={loss} weights rollouts by their length; loss=grpo is the form of GSPO"
    assert (text in warnings(quick_run(*overrides))) == warned
    assert warnings(quick_run(f"loss={loss}")) == []
    if loss == "dapo":
        assert text in train_command("run.dry=true", *overrides).stdout


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["generation.repetition_penalty=1.2"], "generation.repetition_penalty=1.2 samples from another distribution"),
        (["loss.epsilon_high=0.28"], "loss.epsilon_high has no effect: with trainer.steps_per_batch=1"),
        (["loss.epsilon_high=0.5", "loss.delta=1.3", "trainer.steps_per_batch=2"], "loss.delta=1.3 is below 1 + the upper clip range = 1.5"),
        (["optimizer.warmup_steps=60"], "optimizer.warmup_steps=60 covers all 60 steps"),
        (["optimizer.learning_rate=0"], "optimizer.learning_rate=0 trains nothing"),
        (["rollout.max_turn_length=9"], "rollout.max_turn_length=9 has no effect"),
        (["data.eval_size=0"], "data.eval_size=0 leaves no held-out task"),
        (["trainer.max_steps=10", "evaluation.steps=25"], "evaluation.steps=25 is more than the 10 steps of the run"),
        (["evaluation=none", "checkpoint.keep_best=3"], "checkpoint.metric and checkpoint.keep_best have no effect without an evaluation"),
        (["strategy=ddp"], "strategy=ddp runs with one process"),
    ],
)
def test_what_is_probably_not_meant_is_said(quick_run, overrides, text):
    config = quick_run(*overrides)
    assert problems(config) == []
    found = [warning for warning in warnings(config, derived.task_count(config)) if text in warning]
    assert len(found) == 1


def test_shipped_experiments_draw_no_warning(quick_run):
    for experiment in ("none", "addition", "gsm8k", "smollm2_arithmetic"):
        config = quick_run(f"experiment={experiment}")
        assert warnings(config, derived.task_count(config)) == []


def test_plan_of_the_embedded_default(quick_run):
    lines = plan_text(
        quick_run("rollout.prompts_per_batch=4", "algorithm.num_generations=6", "trainer.steps_per_batch=2", "algorithm.num_iterations=3")
    ).splitlines()
    assert lines[:6] == [
        "plan",
        "  run                 addition-grpo-dapo-tiny-s42",
        "  training tasks      2000",
        "  generation batch    4 prompts x 6 = 24 rollouts",
        "  step                12 rollouts; steps from each generation batch: 6",
        "  batches per epoch   500",
    ]
    assert "  ratio clipped to    0.8 .. 1.2" in lines
    assert any(line.split() == ["algorithm.num_iterations", "3", "(default", "1)"] for line in lines)
