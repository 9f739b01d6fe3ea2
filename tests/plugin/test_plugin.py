"""A loss of a third-party package is an option like any other: listed, selectable, type-checked, and named when it is broken."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def _fake(site: Path, name: str, code: str) -> Path:
    """An installed package by hand: a module and the metadata that names it."""
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text(code)
    info = site / f"{name}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[rlexp.plugins]\n{name} = {name}\n")
    return site


def test_it_is_listed(plugin_site, program):
    (losses,) = re.findall(r"^loss: (.*)$", program(plugin_site, "--help").stdout, re.MULTILINE)
    assert {"dapo", "grpo", "mine", "mine_hot"} <= set(losses.split(", "))
    line = "rlexp-train loss=mi"
    assert program(plugin_site, "-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line))).stdout.split() == ["loss=mine", "loss=mine_hot"]
    assert "rlexp-plugin:extra" in program(plugin_site, "--info", "searchpath").stdout


@pytest.mark.parametrize(("option", "pull"), [("mine", "0.5"), ("mine_hot", "0.9")])
def test_it_can_be_chosen_with_and_without_yaml(plugin_site, program, option, pull):
    done = program(plugin_site, "--cfg", "job", "-p", "loss", f"loss={option}")
    assert {"name: mine", "mask_truncated_completions: false", f"pull: {pull}"} <= set(done.stdout.splitlines())
    plan = program(plugin_site, "run.dry=true", f"loss={option}")
    assert plan.returncode == 0 and plan.stderr == ""
    assert "addition-grpo-mine-tiny-s42" in plan.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["loss=mine", "loss.pul=1"], "error: loss.pul: unknown key; did you mean loss.pull?\n"),
        (["loss=mine", "loss.pull=strong"], "error: loss.pull='strong' has the wrong type: it must be a number\n"),
        (["loss=mine", "loss.pull=-1"], "error: loss.pull=-1.0 is out of range: it must be >= 0\n"),
        (["loss=mine", "loss.epsilon=0.1"], "error: loss.epsilon: only loss=bnpo or dapo or "),
        (["loss=mime"], "error: loss=mime: no such option; did you mean mine or mine_hot? (loss has bnpo, "),
    ],
    ids=str,
)
def test_it_is_type_checked(plugin_site, program, arguments, message):
    done = program(plugin_site, "run.dry=true", *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(message) and done.stderr.count("\n") == 1


def test_a_saved_config_with_it_loads_again(plugin_site, program, tmp_path):
    environment = {"PYTHONPATH": str(plugin_site), "PATH": ""}
    text = program(plugin_site, "--cfg", "job", "loss=mine", "loss.pull=0.25").stdout
    (tmp_path / "config.yaml").write_text(text)
    code = "from rlexp.config.saved import load_config; loss = load_config('config.yaml').loss; print(type(loss).__module__, loss.pull)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("rlx_extra 0.25\n", "")


def test_a_plugin_that_cannot_be_imported_is_named_when_its_option_is_missed(program, tmp_path):
    site = _fake(tmp_path / "site", "rlx_broken", "import rlx_missing_dependency\n")
    fine = program(site, "run.dry=true")
    assert (fine.returncode, fine.stderr) == (0, "")
    done = program(site, "run.dry=true", "loss=mine")
    assert done.returncode == 1
    assert done.stderr.startswith("error: loss=mine: no such option")
    assert "(the plugin rlx_broken could not be imported: rlx_broken: ModuleNotFoundError: No module named 'rlx_missing_dependency')" in done.stderr
    assert "Traceback" not in done.stderr
    traced = program(site, "run.dry=true", RLEXP_PLUGIN_TRACE="1")
    assert traced.returncode == 1 and "ModuleNotFoundError" in traced.stderr and "Traceback" in traced.stderr


def test_a_plugin_cannot_take_a_shipped_name(program, tmp_path):
    code = (
        "from rlexp.config.algorithm import DAPOLossConfig\nfrom rlexp.registry import LOSSES\nLOSSES.register('dapo', DAPOLossConfig, 'rlx_thief.loss:dapo')\n"
    )
    site = _fake(tmp_path / "site", "rlx_thief", code)
    done = program(site, "run.dry=true", "loss=mine")
    assert (
        "loss=dapo is already registered by rlexp.config.algorithm (rlexp.losses.dapo:dapo); choose another name than that for rlx_thief.loss:dapo"
        in done.stderr
    )
