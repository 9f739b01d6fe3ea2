"""A saved config.yaml is the truth of a run: typed, plain YAML, and read as strictly as a command line."""

from __future__ import annotations

import re

import pytest
import yaml

from rlexp.config.errors import UserError
from rlexp.config.saved import load_config, save_config


def test_round_trip_of_every_experiment(quick_run, tmp_path):
    for experiment in ("none", "addition", "gsm8k", "smollm2_arithmetic"):
        config = quick_run(f"experiment={experiment}", "tracker=[wandb,tensorboard]", "peft=lora", "algorithm.beta=1e-3")
        save_config(config, tmp_path / "config.yaml")
        assert load_config(tmp_path / "config.yaml") == config


def test_round_trip_of_text_that_looks_like_something_else(quick_run, tmp_path):
    config = quick_run()
    config.run.name, config.data.system_prompt, config.model.chat_template = "1e-6", "${not.an.interpolation}", "null"
    config.reward.terms["exact_match"].pattern = "#{2}\\s*([^'\"]+)\n$"
    config.generation.stop = ["yes", "", "1_000", "\u20ac"]
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


@pytest.mark.cases("S36")
@pytest.mark.rows("GRPO-082", "GRPO-083")
@pytest.mark.parametrize("form", ["{length_penalty: 1e-1}", "'{\"length_penalty\": 1e-1}'", "'{\"length_penalty\": 0.1}'"])
def test_a_number_in_scientific_notation_is_a_number(quick_run, tmp_path, form):
    config = quick_run("optimizer.learning_rate=1e-6", "generation=transformers", f"generation.generation_kwargs={form}")
    save_config(config, tmp_path / "config.yaml")
    data = yaml.safe_load((tmp_path / "config.yaml").read_text())  # plain PyYAML, the strictest reader
    rate, penalty = data["optimizer"]["learning_rate"], data["generation"]["generation_kwargs"]["length_penalty"]
    assert (type(rate), rate, type(penalty), penalty) == (float, 1e-6, float, 0.1)


@pytest.mark.cases("S36")
def test_a_hand_written_file_may_use_it_too(quick_run, tmp_path):
    save_config(quick_run(), tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text()
    edited = re.sub(r"learning_rate: [\d.]+", "learning_rate: 3e-7", text).replace("generation_kwargs: null", "generation_kwargs: {length_penalty: 1e-1}")
    assert edited != text
    (tmp_path / "config.yaml").write_text(edited)
    config = load_config(tmp_path / "config.yaml")
    assert (config.optimizer.learning_rate, config.generation.generation_kwargs) == (3e-7, {"length_penalty": 0.1})


def test_an_older_file_without_a_key_gets_its_default(quick_run, tmp_path):
    config = quick_run()
    save_config(config, tmp_path / "config.yaml")
    data = yaml.safe_load((tmp_path / "config.yaml").read_text())
    del data["trainer"]["logits_chunk"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(data))
    assert load_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data["loss"].update(foo=1), "loss.foo: unknown key"),
        (lambda data: data["loss"].update(name="sap0"), "did you mean sapo"),
        (lambda data: data.update(extra={}), "extra: unknown key"),
        (lambda data: data["run"].update(seed="many"), "run.seed='many' has the wrong type: it must be a whole number"),
        (lambda data: data.update(schema_version=99), "has schema_version 99, but this rlexp knows 1"),
        (lambda data: data.pop("loss"), "loss: choose one of bnpo, cispo, "),
    ],
)
def test_a_wrong_file_is_refused_with_its_path(quick_run, tmp_path, edit, message):
    path = tmp_path / "config.yaml"
    save_config(quick_run(), path)
    data = yaml.safe_load(path.read_text())
    edit(data)
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(UserError) as caught:
        load_config(path)
    assert str(path) in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize("text", ["- a\n", "a: [\n"])
def test_a_file_that_is_no_config(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml is not"):
        load_config(tmp_path / "config.yaml")
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load_config(tmp_path / "missing.yaml")
