"""Every shipped option composes and converts; YAML and registry agree; defaults live in the dataclasses only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from rlexp import registry
from rlexp.components import register_all
from rlexp.config import validate_cluster, validate_generation
from rlexp.config.convert import checked_config
from rlexp.config.correction import CorrectionConfig
from rlexp.config.differences import default_options
from rlexp.config.fields import walk
from rlexp.config.run import RunConfig
from rlexp.config.training import CheckpointConfig, EvaluationConfig

register_all()
CONF = registry.conf_dir()
GROUPS = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir() and folder.name not in ("hydra", "local"))
COMPONENT_GROUPS = [group for group in GROUPS if group not in ("experiment", "preset", "debug", "sweep")]
NEEDED = {
    "model=hub": ["model.path=x"],
    "data=files": ["data.path=x"],
    "data=hub": ["data.path=x"],
    "reward=custom": ["reward.terms.custom.path=x.py:f"],
    "reward=model": ["reward.terms.model.path=x"],
}
WITHOUT_REGISTRY = {"correction": CorrectionConfig, "evaluation": EvaluationConfig, "checkpoint": CheckpointConfig}


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def rounds() -> Iterator[list[str]]:
    """Command lines that together choose every option of every group, with what it needs."""
    names = {group: options(group) for group in COMPONENT_GROUPS}
    for number in range(max(map(len, names.values()))):
        chosen = [f"{group}={known[number % len(known)]}" for group, known in names.items()]
        if "loss=dppo" in chosen:  # its ratio is to the sampler already
            chosen = ["correction=none" if choice.startswith("correction=") else choice for choice in chosen]
        if "algorithm=sdpo" in chosen:  # has no policy term by default
            chosen = ["correction=none" if choice.startswith("correction=") else choice for choice in chosen]
        if "loss=vespo" in chosen:  # refuses weights of whole rollouts
            chosen = [choice.replace("correction=sequence", "correction=token") for choice in chosen]
        if any(choice.startswith("generation=vllm") for choice in chosen):  # not with DeepSpeed, which another round has
            chosen = [choice.replace("strategy=deepspeed_zero3", "strategy=ddp") for choice in chosen]
        yield ["experiment=none", *chosen, *(extra for choice in chosen for extra in NEEDED.get(choice, []))]


@pytest.mark.parametrize("overrides", list(rounds()), ids=str)
@pytest.mark.rows("GRPO-111")
def test_every_option_composes_and_is_valid(compose_raw, overrides, monkeypatch):
    monkeypatch.setattr(validate_generation, "vllm_installed", lambda: True)
    monkeypatch.setattr(validate_cluster, "submitit_installed", lambda: True)
    cfg = compose_raw(*overrides, with_hydra=True)
    chosen = dict(cfg.hydra.runtime.choices)
    for override in overrides:
        group, _, option = override.partition("=")
        if "." not in group and group != "reward":
            assert chosen[group] == option
    plain = OmegaConf.to_container(OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"]))
    config = checked_config({key: value for key, value in plain.items() if key != "hydra"})
    assert set(config.reward.terms) == {next(override.partition("=")[2] for override in overrides if override.startswith("reward="))}


@pytest.mark.parametrize("override", [f"{group}={name}" for group in ("experiment", "debug") for name in options(group)])
def test_every_experiment_is_valid_and_names_itself(compose_raw, override):
    cfg = compose_raw(override)
    config = checked_config(cfg)
    group, _, name = override.partition("=")
    assert config.run.experiment == (name if group == "experiment" else f"debug_{name}")
    head = (CONF / group / f"{name}.yaml").read_text().splitlines()[:2]
    assert head[0] == "# @package _global_"
    assert head[1].startswith("# python -m rlexp.train ")
    assert override in head[1]


def test_every_sweep_file_holds_axes_or_a_method(compose_raw):
    for name in options("sweep"):
        composed = compose_raw(f"sweep={name}", with_hydra=True)
        assert composed.hydra.sweeper.params or composed.sweep.method == name
        head = (CONF / "sweep" / f"{name}.yaml").read_text().splitlines()
        assert next(line for line in head if "@package" not in line).startswith(f"# python -m rlexp.train -m sweep={name}")


def test_registry_and_yaml_name_the_same_options():
    for group, known in registry.REGISTRIES.items():
        files = set(options(group))
        # components that other tests registered in this process have no YAML
        shipped = {name for name in known.names() if known.entry(name).origin.startswith("rlexp.")}
        assert shipped <= files, group
        for extra in files - set(known.names()) - {"none"}:  # a preset of a registered option
            first = yaml.safe_load((CONF / group / f"{extra}.yaml").read_text())["defaults"][0]
            assert first.removeprefix(f"/_schema_{group}_").removesuffix("@_here_") in known.names()
    assert set(GROUPS) == {*registry.REGISTRIES, *WITHOUT_REGISTRY, "experiment", "preset", "debug", "sweep"}


def _dataclasses() -> Iterator[type]:
    for known in registry.REGISTRIES.values():
        yield from (known.config_for(name) for name in known.names())
    yield from (field.default_factory for field in dataclasses.fields(RunConfig) if field.default_factory is not dataclasses.MISSING)


def test_every_dataclass_and_field_is_documented():
    for config in _dataclasses():
        assert config.__doc__ and not config.__doc__.startswith(f"{config.__name__}("), config
        for field in dataclasses.fields(config):
            if field.name != "name":
                assert field.metadata.get("doc"), f"{config.__name__}.{field.name}"


def _leaves(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _defaults(config: RunConfig) -> dict[str, Any]:
    """Dotted key -> what the dataclass says."""
    values = {}
    for key, field, _ in walk(config):
        values[key] = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return values


@pytest.mark.parametrize("path", sorted(path.relative_to(CONF) for path in CONF.rglob("*.yaml") if path.parent != CONF), ids=str)
def test_no_yaml_repeats_a_default(compose_run, path):
    group, name = str(path.parent), path.stem
    if group in ("hydra/help", "sweep"):
        return
    text = (CONF / path).read_text()
    data = yaml.safe_load(text) or {}
    data.pop("defaults", None)
    if not data:
        return
    defaults = _defaults(compose_run(f"{group}={name}", *NEEDED.get(f"{group}={name}", [])))
    first = text.splitlines()[0]
    package = "" if "_global_" in first else first.removeprefix("# @package ") + "." if "@package" in first else f"{group}."
    for key, value in _leaves(data, package):
        section = key.rpartition(".")[0]
        if section in defaults:  # inside a free-form value
            continue
        assert defaults[key] != value, f"conf/{path} repeats the default {key}={value}"


def test_default_choices_have_files():
    for group, option in default_options().items():
        for name in option if isinstance(option, list) else [option]:
            assert name is None or name in options(group), group


def test_precedence_experiment_beats_group_and_command_line_beats_both(compose_run):
    assert compose_run("experiment=none").optimizer.learning_rate == 1e-6
    assert compose_run().optimizer.learning_rate == compose_run("experiment=addition").optimizer.learning_rate > 1e-6
    assert compose_run("optimizer.learning_rate=2e-3", "experiment=addition").optimizer.learning_rate == 2e-3
    other = compose_run("experiment=smollm2_arithmetic", "model=tiny")
    assert (other.model.name, other.data.name, list(other.reward.terms)) == ("tiny", "reasoning_gym", ["reasoning_gym"])
    assert other.trainer.max_steps != compose_run().trainer.max_steps  # nothing of the embedded default is left


def test_several_rewards_and_trackers(compose_run):
    config = compose_run("reward=[exact_match,think_format]", "reward.terms.think_format.weight=0.5", "tracker=[wandb,tensorboard]")
    assert [(key, term.weight) for key, term in config.reward.terms.items()] == [("exact_match", 1.0), ("think_format", 0.5)]
    assert list(config.tracker.terms) == ["wandb", "tensorboard"]
    assert list(compose_run("tracker=wandb").tracker.terms) == ["wandb"]
    assert compose_run().tracker.terms == {}


def test_a_second_term_of_the_same_kind(compose_run):
    config = compose_run("+reward.terms.strict={name: exact_match, ignore_case: true}")
    assert config.reward.terms["strict"] == type(config.reward.terms["exact_match"])(ignore_case=True)


def test_free_form_dicts_take_new_keys_without_a_plus(compose_run):
    assert compose_run("data=reasoning_gym", "data.params={min_digits: 1}", "data.params.max_digits=2").data.params == {"min_digits": 1, "max_digits": 2}
    assert compose_run("data=files", "data.path=x", "data.columns={answer: gold}").data.columns == {"answer": "gold"}
    assert compose_run("reward=custom", "reward.terms.custom.path=x.py:f", "reward.terms.custom.kwargs={cap: 3}").reward.terms["custom"].kwargs == {"cap": 3}


@pytest.mark.rows("GRPO-014", "GRPO-262")
@pytest.mark.parametrize(("given", "meaning"), [("true", "group"), ("false", "none"), ("False", "none"), ("batch", "batch")])
def test_scale_rewards_takes_true_and_false(compose_run, given, meaning):
    assert compose_run(f"algorithm.scale_rewards={given}").algorithm.scale_rewards == meaning
