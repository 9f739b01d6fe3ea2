"""What a user reads after a mistake: one message that names the key and the fix, exit code 1, no traceback, no torch."""

from __future__ import annotations

import pytest

from rlexp.components import register_all
from rlexp.config.convert import all_problems, checked_config
from rlexp.config.errors import UserError
from rlexp.config.overrides import command_line_problems
from rlexp.registry import LOSSES, MODELS, REWARDS

register_all()
NO_SAP0 = f"loss=sap0: no such option; did you mean sapo or gspo or dapo? (loss has {', '.join(sorted([*LOSSES.names(), 'gspo']))})"
GOLDEN = {
    "loss=sap0": [NO_SAP0],
    "loss.epsilonn=1": ["loss.epsilonn: unknown key; did you mean loss.epsilon or loss.epsilon_high?"],
    "losss=dapo": ["losss: unknown key; did you mean loss?"],
    "learning_rate=1e-3": ["learning_rate: unknown key; did you mean optimizer.learning_rate?"],
    "data.path=x": ["data.path: only data=files or hub has this key"],
    "optimizer.learning_rate=fast": ["optimizer.learning_rate='fast' has the wrong type: it must be a number"],
    "trainer.max_steps=2.5": ["trainer.max_steps=2.5 has the wrong type: it must be a whole number, or null"],
    "run.dry=maybe": ["run.dry='maybe' has the wrong type: it must be true or false"],
    "run=3": ["run=3 must be a section of keys, not a single value"],
    "reward.terms.exact_match.weigth=2": ["reward.terms.exact_match.weigth: unknown key; did you mean reward.terms.exact_match.weight?"],
    "reward=[exact,overlong]": [f"reward=exact: no such option; did you mean exact_match? (reward has {', '.join(REWARDS.names())})"],
    "+sweep=loss_seed": ["+sweep=loss_seed: leave out the +, the group has a choice already: sweep=loss_seed"],
    "data.path=runs/a=b": [
        "data.path=runs/a=b cannot be read (mismatched input '=' expecting <EOF>); put a value with special characters in quotes: 'data.path=\"runs/a=b\"'"
    ],
    "loss": ["loss cannot be read (Error parsing override 'loss'); write it as key=value, e.g. loss=..."],
}


@pytest.mark.parametrize("line", GOLDEN)
def test_a_refused_command_line_is_explained(line):
    assert command_line_problems([line]) == GOLDEN[line]


def test_all_mistakes_of_a_command_line_at_once():
    assert command_line_problems(["loss=sap0", "strategy.foo=1", "loss.epsilon=abc", "trainer.steps_per_batch=0", "generation.top_p=1.5"]) == [
        NO_SAP0,
        "loss.epsilon='abc' has the wrong type: it must be a number",
        "strategy.foo: unknown key; strategy has name",
        "generation.top_p=1.5 is out of range: it must be > 0 and <= 1",
        "trainer.steps_per_batch=0 is out of range: it must be >= 1",
    ]


def test_every_value_of_a_sweep_is_looked_at():
    assert command_line_problems(["loss.epsilon=0.1,-1,abc", "loss=dapo,sap0,grpo"]) == [
        NO_SAP0,
        "loss.epsilon=-1.0 is out of range: it must be >= 0",
        "loss.epsilon='abc' has the wrong type: it must be a number",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("+loss.foo=1", "loss.foo: unknown key; loss has delta, entropy_coef, entropy_coef_delta, "),
        ("+trainer.max_step=1", "trainer.max_step: unknown key; did you mean trainer.max_steps"),
        ("+reward.terms.x={nam: exact_match}", "reward.terms.x.nam: unknown key; did you mean reward.terms.x.name?"),
        ("+reward.terms.x={name: exact_matc}", "reward.terms.x.name=exact_matc: unknown reward 'exact_matc'; did you mean exact_match?"),
        ("loss.name=sap0", "loss.name=sap0: unknown loss 'sap0'; did you mean sapo or dapo?"),
        ("generation.generation_kwargs='{a'", "generation.generation_kwargs='{a' has the wrong type: it must be a dict or a JSON string of one"),
        ("model=hub", "model.path is not set: Hub id or local folder, e.g. model.path=Qwen/Qwen3-0.6B"),
    ],
)
def test_what_hydra_accepts_is_refused_by_the_conversion(compose_raw, line, message):
    with pytest.raises(UserError) as caught:
        checked_config(compose_raw(line))
    assert message in str(caught.value)


@pytest.mark.rows("GRPO-256")
def test_problems_of_all_kinds_come_together(compose_raw):
    with pytest.raises(UserError) as caught:
        checked_config(compose_raw("loss.epsilon=-0.1", "algorithm.num_generations=1", "trainer.tokens_per_microbatch=-5", "generation.top_p=1.5"))
    assert str(caught.value).splitlines() == [
        "4 problems:",
        "  1. generation.top_p=1.5 is out of range: it must be > 0 and <= 1",
        "  2. algorithm.num_generations=1 is out of range: it must be >= 2 (a group needs at least two rollouts to be compared)",
        "  3. loss.epsilon=-0.1 is out of range: it must be >= 0",
        "  4. trainer.tokens_per_microbatch=-5 is out of range: it must be >= 8",
    ]


def test_nothing_chosen_at_all():
    _, problems = all_problems({})
    assert [problem.partition(":")[0] for problem in problems][:3] == ["model", "peft", "data"]
    assert problems[0] == f"model: choose one of {', '.join(MODELS.names())} by model=OPTION"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["loss=sap0"], "error: loss=sap0: no such option; did you mean sapo or gspo or dapo?"),
        (["+loss.foo=1"], "error: loss.foo: unknown key"),
        (["algorithm.num_generations=1"], "error: algorithm.num_generations=1 is out of range"),
        (["loss.epsilon=0.1,abc", "-m"], "error: loss.epsilon='abc' has the wrong type"),
        (["loss=dapo,grpo"], "error: Ambiguous value for argument 'loss=dapo,grpo'"),
        (["--config-dir", "nowhere"], "nowhere' not found"),
    ],
    ids=str,
)
def test_the_program_says_it_once_and_exits_with_1(train_main, arguments, message):
    code, _, said = train_main("run.dry=true", *arguments)
    assert code == 1
    assert message in said
    assert said.count("error: ") == 1
    assert "Traceback" not in said and "HYDRA_FULL_ERROR" not in said


@pytest.mark.cases("S25")
@pytest.mark.rows("GRPO-261")
def test_temperature_zero_is_for_evaluation_only(train_command, compose_raw):
    for arguments in (["generation.temperature=0"], ["generation.generation_kwargs={temperature: 0}"]):
        done = train_command(*arguments)  # a real run, not a dry one: nothing may be loaded before it is refused
        assert done.returncode == 1
        assert done.stdout == ""
        assert "temperature" in done.stderr and "it must be > 0 (use a small positive value; evaluation.temperature may be 0)" in done.stderr
    assert checked_config(compose_raw("evaluation.temperature=0")).evaluation.temperature == 0


def test_a_mistake_in_a_users_file_names_the_file(train_main, tmp_path):
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss" / "my.yaml").write_text("defaults:\n  - /_schema_loss_dapo@_here_\n  - _self_\nepsilonn: 0.3\n")
    code, _, said = train_main("--config-dir", str(tmp_path), "loss=my", "run.dry=true")
    assert code == 1
    assert said.startswith("error: in the file loss/my.yaml: loss.epsilonn: ")
    assert "Traceback" not in said
