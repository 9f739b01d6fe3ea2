"""Whole runs with generation=vllm_server, through the command line. The servers hold no model: their life is tested, and that nothing outlives a run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from programs import Done, Programs
from run_folders import metrics
from server_fake import FakeServer

STUB = Path(__file__).parents[1] / "server_stub"
BASE = [
    *("experiment=none", "model=random_tiny", "data=addition", "data.digits=1", "data.size=40", "reward=[digits]", "correction=none"),
    *("rollout.prompts_per_batch=2", "rollout.max_completion_length=6", "algorithm.num_generations=4", "trainer.max_steps=3", "run.name=r"),
    *("evaluation=none", "checkpoint=none", "generation=vllm_server", "generation.verify_sync=never", "generation.timeout=30"),
]


def train(programs: Programs, where: Path, *overrides: str, env: dict[str, str] | None = None) -> Done:
    paths = os.pathsep.join([str(STUB), str(STUB.parent), str(STUB.parent / "contracts" / "plugin")])
    done = programs.train(*BASE, *overrides, cwd=where, env={"RLEXP_OUTPUTS": str(where), "PYTHONPATH": paths, **(env or {})}, timeout=90)
    return done


def left(where: Path, seconds: float = 10.0) -> list[str]:
    """Command lines of processes that still have to do with a run, after some seconds of patience."""
    deadline = time.monotonic() + seconds
    while True:
        lines = subprocess.run(["ps", "-eo", "pid=,stat=,args="], capture_output=True, text=True, check=True).stdout.splitlines()
        found = [line for line in lines if str(where) in line and " Z" not in line]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


@pytest.mark.rows("GRPO-200", "GRPO-203", "GRPO-204")
def test_a_run_starts_its_servers_and_ends_them(programs, tmp_path):
    done = train(programs, tmp_path, "generation.launch=true", "generation.servers=2")
    assert done.code == 0, done.err
    assert left(tmp_path, 0.5) == []
    logged = [line for line in metrics(tmp_path / "r") if line["split"] == "train"]
    assert [line["step"] for line in logged] == [1, 2, 3]
    assert all(line["generation/retries"] == 0 for line in logged)
    assert "perf/weight_sync_s" in (tmp_path / "r" / "metrics.jsonl").read_text()
    assert (tmp_path / "r" / "servers" / "server_1.log").is_file()


@pytest.mark.parametrize("fault", ["0:next:after", "1:backward:before", "2:publish:before"])
def test_nothing_is_left_of_a_run_that_was_killed(programs, tmp_path, fault):
    assert train(programs, tmp_path, "generation.launch=true", env={"RLEXP_FAULT": fault}).code == -signal.SIGKILL
    assert left(tmp_path) == []


def test_nothing_is_left_of_a_run_that_failed(programs, tmp_path):
    (tmp_path / "mine.py").write_text("def reward(**kwargs):\n    raise ValueError('no')\n")
    done = train(programs, tmp_path, "generation.launch=true", "reward=custom", f"reward.terms.custom.path={tmp_path}/mine.py:reward")
    assert done.code == 1 and "no" in done.err
    assert left(tmp_path, 0.5) == []


@pytest.mark.parametrize("where", ["v1/completions", "update_weights", "pause"])
def test_a_server_that_dies_ends_the_run_within_seconds(programs, tmp_path, where):
    """While it samples, in the middle of a sync, and at the first call after a step."""
    began = time.monotonic()
    done = train(programs, tmp_path, "generation.launch=true", f"+generation.engine_kwargs={{die_at: {where}, die_after: 2}}")
    assert done.code == 1 and "ended with code 137; the end of" in done.err and time.monotonic() - began < 40
    assert left(tmp_path, 0.5) == []


@pytest.mark.parametrize("where", ["v1/completions", "update_weights"])
def test_with_restart_the_run_goes_on(programs, tmp_path, where):
    kwargs = f"+generation.engine_kwargs={{die_at: {where}, die_after: 3, died: {tmp_path}/died}}"
    done = train(programs, tmp_path, "generation.launch=true", "generation.restart=1", kwargs)
    assert done.code == 0, done.err
    assert (tmp_path / "died").exists() and left(tmp_path, 0.5) == []
    logged = [line for line in metrics(tmp_path / "r") if line["split"] == "train"]
    assert [line["step"] for line in logged] == [1, 2, 3] and sum(line["generation/restarts"] for line in logged) == 1


def test_two_trainer_processes_share_one_server_and_its_restart(programs, tmp_path):
    kwargs = f"+generation.engine_kwargs={{die_at: v1/completions, die_after: 3, died: {tmp_path}/died}}"
    two = ["strategy=ddp", "cluster.processes_per_node=2", "generation.launch=true", "generation.restart=1", kwargs]
    done = train(programs, tmp_path, *two)
    assert done.code == 0, done.err
    assert (tmp_path / "died").exists() and left(tmp_path, 0.5) == []
    assert len([line for line in metrics(tmp_path / "r") if line["split"] == "train"]) == 3


def test_one_trainer_uses_two_servers_that_run_already(programs, tmp_path):
    servers = [FakeServer(), FakeServer()]
    done = train(programs, tmp_path, "generation.base_url='" + ",".join(server.url for server in servers) + "'")
    assert done.code == 0, done.err
    for server in servers:
        assert server.state.version == "2", "the weights of the last batch; those after the last step are sampled from by nobody"
        assert sum(body["n"] for body in server.bodies("v1/completions") if "n" in body) == 3 * 4
        server.close()


@pytest.mark.rows("GRPO-205")
def test_what_is_wrong_is_one_clear_message(programs, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = train(programs, tmp_path, "generation.launch=true", f"generation.port={port}")
    assert done.code == 1 and f"generation.port={port} cannot be used" in done.err and "Traceback" not in done.err
    done = train(programs, tmp_path, "generation.port=9", "generation.timeout=0.5")
    assert done.code == 1 and "no vLLM server answered at http://127.0.0.1:9" in done.err and "Traceback" not in done.err
    done = train(programs, tmp_path, "generation.launch=true", "generation.host=0.0.0.0", "generation.restart=1", "generation.weight_transfer=folder")
    assert "set generation.expose=true if only trusted machines can" in done.err and "needs generation.transfer_folder" in done.err
    assert not (tmp_path / "r").exists()


def test_a_checkpoint_is_evaluated_on_a_server_of_its_own(programs, tmp_path):
    options = ["generation.launch=true", "checkpoint=default", "evaluation=default", "data.eval_size=2", "trainer.max_steps=1"]
    done = train(programs, tmp_path, *options)
    assert done.code == 0, done.err
    paths = os.pathsep.join([str(STUB), str(STUB.parent), str(STUB.parent / "contracts" / "plugin")])
    done = programs.run("rlexp.evaluate", "run=r", cwd=tmp_path, env={"RLEXP_OUTPUTS": str(tmp_path), "PYTHONPATH": paths})
    assert done.code == 0 and "accuracy" in done.out, done.err
    assert left(tmp_path, 0.5) == []


@pytest.mark.rows("GRPO-201", "ASYNC-224")
def test_a_dry_run_prints_the_line_that_starts_its_server(programs, tmp_path):
    options = ["generation.max_model_length=64", "model=hub", "model.path=org/some", "run.dry=true", "peft=lora", "peft.r=12", "generation.sync_lora=adapter"]
    done = train(programs, tmp_path, *options)
    assert done.code == 0, done.err
    line = done.out.split("server\n")[1].strip()
    for part in (
        "VLLM_SERVER_DEV_MODE=1 ",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True ",
        " python -m vllm.entrypoints.openai.api_server --model org/some --dtype float32 --max-model-len 64",
        '--weight-transfer-config \'{"backend": "rlexp"}\' --logprobs-mode processed_logprobs --max-logprobs -1 --generation-config vllm',
        "--enable-lora --max-loras 1 --max-lora-rank 16",
        "--host 127.0.0.1 --port 8000",
    ):
        assert part in line
    assert "server\n" not in train(programs, tmp_path, "generation.launch=true", "run.dry=true").out
