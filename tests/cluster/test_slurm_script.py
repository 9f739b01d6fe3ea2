"""What is submitted, and what is refused before anything is: no Slurm needed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from programs import Done, Programs
from run_configs import default_with
from small_runs import SMALL, options

from rlexp.config import validate_cluster
from rlexp.config.cluster import SlurmClusterConfig, minutes_of
from rlexp.config.vllm_server import VLLMServerGenerationConfig
from rlexp.launch.slurm.script import script_text

STORED = Path(__file__).with_name("slurm_script.txt")


def train(programs: Programs, folder: Path, *overrides: str, sweep: bool = True, env: dict[str, str] | None = None) -> Done:
    small = [option for option in options(SMALL, overrides) if not option.startswith("run.name")]
    command = [*(["-m"] if sweep else []), "cluster=slurm", *small]
    return programs.train(*command, cwd=folder, env={"RLEXP_OUTPUTS": str(folder / "out"), **(env or {})})


@pytest.mark.cases("S54")
@pytest.mark.rows("GRPO-179")
def test_the_script_says_what_was_meant(programs: Programs, tmp_path: Path) -> None:
    asked = ["cluster.nodes=2", "cluster.processes_per_node=2", "strategy=ddp", "cluster.time=2:00:00", "cluster.mem=64G", "cluster.cpus_per_node=8"]
    more = ["cluster.additional_parameters={gpus: 'a100:2', reservation: night}", "cluster.setup=[module load cuda]", "cluster.account=lab"]
    done = train(programs, tmp_path, *asked, *more, "run.seed=1,2,3", "sweep.name=s", "cluster.dry_run=true")
    assert done.code == 0, done.err
    text = done.out.replace(str(tmp_path), "HOME").replace(sys.executable, "PYTHON")
    assert text == STORED.read_text()
    for line in ("--open-mode=append", "--gpus=a100:2", "--reservation=night", "--signal=USR2@120", "--array=0-2%3", "--requeue"):
        assert text.count(f"#SBATCH {line}\n") == 1, line
    assert "gpus-per-node" not in text and "ntasks" not in text and "wckey" not in text
    assert not (tmp_path / "out" / "sweeps" / "s").exists(), "nothing is left behind"


def test_jobs_that_ask_for_different_things_are_different_arrays(programs: Programs, tmp_path: Path) -> None:
    done = train(programs, tmp_path, "run.seed=1,2", "strategy=ddp", "cluster.nodes=1,2", "cluster.dry_run=true")
    assert done.code == 0 and done.out.count("#!/bin/bash") == 2 and done.out.count("--array=0-1%2") == 2, done.out + done.err
    assert re.findall(r"--nodes=(\d)", done.out) == ["1", "2"]
    single = train(programs, tmp_path, "cluster.dry_run=true")
    assert single.code == 0 and "--array" not in single.out and "%j_0_log.out" in single.out


def test_without_m_it_is_refused(programs: Programs, tmp_path: Path) -> None:
    for extra in ([], ["cluster.wait=false"]):
        done = train(programs, tmp_path, *extra, sweep=False)
        assert done.code == 1 and "Traceback" not in done.err
        assert (
            done.err.startswith("error: cluster=slurm submits jobs, which needs -m: python -m rlexp.train -m cluster=slurm") and not (tmp_path / "out").exists()
        )
    dry = train(programs, tmp_path, "run.dry=true", sweep=False)
    assert dry.code == 0 and dry.out.startswith("plan"), dry.err


def test_all_jobs_are_checked_before_one_is_submitted(programs: Programs, tmp_path: Path) -> None:
    """Also where there is no Slurm: the mistakes come first."""
    done = train(programs, tmp_path, "trainer.steps_per_batch=1,3", "run.seed=1,2", "sweep.name=s")
    assert done.code == 1 and done.err.startswith("error: trainer.steps_per_batch=3 does not divide") and done.err.count("steps_per_batch=3") == 1, done.err
    assert not (tmp_path / "out" / "sweeps" / "s").exists()


def test_where_there_is_no_slurm(programs: Programs, tmp_path: Path) -> None:
    done = train(programs, tmp_path, "sweep.name=s", env={"PATH": str(tmp_path)})
    assert done.code == 1 and done.err.startswith("error: cluster=slurm: there is no srun on this machine"), done.err


def test_without_submitit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate_cluster, "submitit_installed", lambda: False)
    (problem,) = validate_cluster.problems(default_with(cluster=SlurmClusterConfig()))
    assert problem == "cluster=slurm needs the package submitit, which is not installed: pip install 'rlexp[slurm]'"


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("0:30", 1), ("10:30", 11), ("4:00:00", 240), ("1:00:01", 61), ("2-0", 2880), ("1-12", 2160), ("1-0:30", 1470), ("0-0:0:30", 1)],
)
def test_time_limits(text: str, minutes: int) -> None:
    assert minutes_of(text) == minutes


@pytest.mark.parametrize("text", ["", "soon", "4h", "-1", "0", "1:2:3:4", "0:0:0"])
def test_what_is_no_time_limit(text: str) -> None:
    with pytest.raises(ValueError):
        minutes_of(text)
    (problem,) = validate_cluster.problems(default_with(cluster=SlurmClusterConfig(time=text)))
    assert problem.startswith(f"cluster.time={text} is no time limit: give minutes")


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        (
            SlurmClusterConfig(additional_parameters={"gpus_per_node": 2}),
            "cluster.additional_parameters.gpus-per-node has a key of its own: set cluster.gpus_per_node",
        ),
        (
            SlurmClusterConfig(additional_parameters={"cpus-per-task": 2}),
            "cluster.additional_parameters.cpus-per-task has a key of its own: set cluster.cpus_per_node",
        ),
        (SlurmClusterConfig(additional_parameters={"ntasks": 2}), "cluster.additional_parameters.ntasks is set by rlexp: leave it out"),
        (SlurmClusterConfig(additional_parameters={"gpus": 2}, gpus_per_node=2), "both ask for GPUs: keep one of the two"),
        (SlurmClusterConfig(time="1", signal_delay=60), "cluster.signal_delay=60 s is not below cluster.time=1"),
        (SlurmClusterConfig(vllm_nodes=1), "cluster.vllm_nodes=1 serve generation=vllm_server generation.launch=true"),
    ],
)
def test_what_does_not_go_together(cluster: SlurmClusterConfig, says: str) -> None:
    (problem,) = validate_cluster.problems(default_with(cluster=cluster))
    assert says in problem


@pytest.mark.rows("GRPO-177", "GRPO-178")
def test_nodes_that_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SlurmClusterConfig(vllm_nodes=2)
    ready = VLLMServerGenerationConfig(launch=True, servers=2, expose=True)
    assert list(validate_cluster.problems(default_with(cluster=cluster, generation=ready))) == []
    for change, says in (
        ({"servers": 1}, "generation.servers=1 and cluster.vllm_nodes=2: each of these nodes has one server"),
        ({"expose": False}, "set generation.expose=true"),
        ({"weight_transfer": "shared_memory"}, "does not leave a machine"),
        ({"restart": 1}, "generation.restart=1 does not go with cluster.vllm_nodes"),
        ({"launch": False}, "with servers that run already"),
    ):
        config = default_with(cluster=cluster, generation=VLLMServerGenerationConfig(**{**vars(ready), **change}))
        assert [problem for problem in validate_cluster.problems(config) if says in problem], says


def test_more_machines_than_one_need_slurm() -> None:
    (problem,) = validate_cluster.problems(default_with(cluster__nodes=2))
    assert problem.startswith("cluster.nodes=2 needs cluster=slurm")


def test_options_that_were_switched_off_do_not_appear() -> None:
    text = script_text(SlurmClusterConfig(), "name", Path("/somewhere"), 1)
    for word in ("partition", "account", "qos", "gpus", "mem", "cpus", "constraint", "None", "null"):
        assert word not in text, word
