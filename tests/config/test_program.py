"""rlexp-train as a program: its start-up cost, its pages, a wheel, another folder, users' own files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from rlexp.config.overrides import command_line_problems
from rlexp.registry import REGISTRIES

ROOT = Path(__file__).resolve().parents[2]


COUNTED = """
import cProfile, pstats, runpy, sys
profile = cProfile.Profile()
try:
    profile.runcall(runpy.run_module, "rlexp.train", run_name="__main__")
except SystemExit:
    pass
print(pstats.Stats(profile).total_calls, file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--cfg", "job"], ["run.dry=true"]], ids=str)
def test_configuring_takes_less_than_a_second_and_no_torch(train_command, arguments, tmp_path):
    """A second in calls, because seconds differ from machine to machine and from minute to minute: a slow core makes five million in one."""
    assert train_command(*arguments).returncode == 0
    counted = subprocess.run([sys.executable, "-c", COUNTED, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(counted.stderr.split()[-1]) < 5_000_000


def test_a_dry_run_prints_the_plan_and_leaves_nothing_behind(train_command, tmp_path):
    done = train_command("run.dry=true", "experiment=smollm2_arithmetic", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("plan\n  run                 smollm2_arithmetic-grpo-dapo-smollm2_135m-s42\n")
    assert list(tmp_path.iterdir()) == []


def test_cfg_prints_a_group(train_main):
    assert yaml.safe_load(train_main("--cfg", "job", "-p", "loss")[1])["name"] == "dapo"


def test_help_fits_a_screen_lists_every_option_and_gives_valid_examples(train_main):
    lines = train_main("--help")[1].strip().splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 160
    for group, known in REGISTRIES.items():
        (line,) = [line for line in lines if line.startswith(f"{group}: ")]
        assert set(known.names()) <= set(re.split(r"[ ,]+", line.partition(": ")[2]))
    examples = [re.split(r"\s{2,}", line.strip())[0].split()[3:] for line in lines if "python -m rlexp.train" in line]
    assert len(examples) >= 4
    for words in examples:
        if not {"-m", "--cfg"} & set(words):
            assert command_line_problems([word.strip("'") for word in words]) == []


def test_info_page(train_command):
    tree = train_command("--info", "defaults-tree").stdout
    assert "experiment: addition" in tree and "loss: dapo" in tree


def test_tab_completion(train_command):
    line = "rlexp-train loss="
    done = train_command("-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)))
    assert done.stdout.split() == [f"loss={name}" for name in sorted([*REGISTRIES["loss"].names(), "gspo"])]
    line = "rlexp-train optimizer.learn"
    assert train_command("-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line))).stdout.split() == ["optimizer.learning_rate="]


def test_a_closed_pipe_is_no_error(tmp_path):
    command = f"{sys.executable} -m rlexp.train --info defaults-tree | head -n 2"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("way", ["--config-dir", "RLEXP_CONF"])
def test_users_own_options(train_main, tmp_path, monkeypatch, way):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "loss").mkdir()
    (tmp_path / "conf" / "loss" / "wide.yaml").write_text("defaults:\n  - /_schema_loss_dapo@_here_\n  - _self_\nepsilon: 0.4\n")
    (tmp_path / "conf" / "experiment" / "own.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /loss: wide\nrun:\n  experiment: own\noptimizer:\n  learning_rate: 1e-6\n"
    )
    folder = str(tmp_path / "conf")
    arguments = ["--config-dir", folder] if way == "--config-dir" else []
    if way == "RLEXP_CONF":
        monkeypatch.setenv(way, folder)
    code, _, said = train_main("run.dry=true", "experiment=own", "loss.epsilonn=1", *arguments)
    assert (code, said) == (1, "error: loss.epsilonn: unknown key; did you mean loss.epsilon or loss.epsilon_high?\n")
    code, plan, _ = train_main("run.dry=true", "experiment=own", *arguments)
    assert code == 0
    assert "own-grpo-dapo-tiny-s42" in plan and "ratio clipped to    0.6 .. 1.4" in plan


@pytest.mark.cases("S37")
def test_a_sweep_over_lists_and_paths_has_sibling_folders(train_main, tmp_path):
    """With Hydra's own launcher: the names are rlexp's, whoever runs the jobs."""
    sweep = ["hydra/launcher=basic", "run.dry=true", "reward=[exact_match],[exact_match,think_format]", "data=files", 'data.path="runs/a=b"']
    code, plans, _ = train_main(*sweep, "-m")
    assert code == 0
    (folder,) = (tmp_path / "outputs" / "sweeps").iterdir()
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert [name.rpartition("-")[0] for name in names] == [
        "path=runs_a=b-data=files-reward=exact_match",
        "path=runs_a=b-data=files-reward=exact_match_think_format",
    ]
    assert plans.count("plan\n") == 2 and plans.count('["exact_match", "think_format"]') == 1
    assert train_main(*sweep, "-m")[0] == 0
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == names


@pytest.mark.parametrize("sweep", [["loss=dapo,sap0"], ["loss.epsilon=0.1,-1"], ["trainer.steps_per_batch=1,3"], ["loss=glob(*)", "run.sed=range(3)"]], ids=str)
def test_a_wrong_value_of_a_sweep_is_refused_before_a_folder_is_made(train_main, tmp_path, sweep):
    code, out, said = train_main(*sweep, "-m")
    assert (code, out) == (1, "")
    assert said.startswith("error: ") and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_the_wheel_runs_from_another_folder(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    shipped = {str(path.relative_to(ROOT / "conf")) for path in (ROOT / "conf").rglob("*.yaml") if "local" not in path.parts}
    packed = {str(path.relative_to(tmp_path / "site" / "rlexp" / "conf")) for path in (tmp_path / "site" / "rlexp" / "conf").rglob("*.yaml")}
    assert shipped == packed - {path for path in packed if path.startswith("local/")}
    (tmp_path / "elsewhere").mkdir()
    command = [sys.executable, "-m", "rlexp.train", "--info", "searchpath"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    pages = subprocess.run(command, cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert f"file://{tmp_path / 'site' / 'rlexp' / 'conf'}" in pages.stdout
    command[3:] = ["run.dry=true", "loss=grpo"]
    done = subprocess.run(command, cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert "addition-grpo-grpo-tiny-s42" in done.stdout


def test_the_reference_page_is_up_to_date():
    # a process of its own: other tests register components in this one
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "config_reference.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, "run: python scripts/config_reference.py"
