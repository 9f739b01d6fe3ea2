"""strategy=fsdp2 from the command line: a rank that is killed, other numbers of processes, a user's own torchrun."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from programs import Programs
from run_configs import default_with
from run_folders import status, train_steps
from safetensors.torch import load_file
from small_runs import Cli

from rlexp.config.reward import ModelRewardConfig, RewardConfig
from rlexp.config.strategy import FSDP2StrategyConfig
from rlexp.config.validate_strategy import problems
from rlexp.config.vllm import VLLMGenerationConfig

TWO = ["strategy=fsdp2", "strategy.timeout=60", "cluster.processes_per_node=2"]
OPTIONS = ["evaluation=none", "trainer.steps_per_batch=1", "checkpoint.keep_last=9"]


@pytest.fixture
def cli(programs: Programs, tmp_path: Path) -> Cli:
    """Programs in a folder of this test."""
    return Cli(programs, tmp_path)


@pytest.mark.rows("GRPO-250")
def test_killed_then_continued_by_one_process_and_by_two_again(cli: Cli) -> None:
    began = time.monotonic()
    done = cli.train(*OPTIONS, *TWO, "trainer.max_steps=6", env={"RLEXP_FAULT": "2:backward:before", "RLEXP_FAULT_RANK": "1"})
    assert done.code == 1 and time.monotonic() - began < 100, done.err
    assert status(cli.run)["reason"] == "rank 1 was killed by SIGKILL (out of memory?)" and "rank 1 was killed by SIGKILL" in done.err
    assert (cli.run / "checkpoints" / "step_000002" / "weights" / "policy").is_dir()
    done = cli.train(*OPTIONS, "strategy=fsdp2", "trainer.max_steps=4")
    assert done.code == 0 and train_steps(cli.run) == [1, 2, 3, 4], done.err
    assert "step_000002 was made by 2 processes and goes on with 1" in (cli.run / "train.log").read_text()
    done = cli.train(*OPTIONS, *TWO, "trainer.max_steps=6")
    assert done.code == 0 and train_steps(cli.run) == [1, 2, 3, 4, 5, 6], done.err
    assert load_file(cli.run / "model" / "model.safetensors")
    done = cli.evaluate(f"run={cli.run}")
    assert done.code == 0 and json.loads((cli.run / "evaluation.json").read_text())["metrics"]["step"] == 6, done.err


LAUNCHERS = {
    "torch.distributed.run": ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--nproc-per-node", "2", "--master-port", "0"),
    "accelerate.commands.launch": (
        *("--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"),
        *("--mixed_precision", "no", "--dynamo_backend", "no"),
    ),
}
"""accelerate starts one process with --cpu; what it calls multi_gpu are ranks, whatever they compute on"""


@pytest.mark.rows("GRPO-180", "GRPO-181")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_under_a_launcher_of_the_users_own(launcher: str, cli: Cli) -> None:
    """Its MASTER_ADDR and MASTER_PORT count."""
    arguments = ["-m", "rlexp.train", *cli.options(*OPTIONS, "strategy=fsdp2", "trainer.max_steps=2")]
    done = cli.programs.run(launcher, *LAUNCHERS[launcher], *arguments, cwd=cli.folder, env={"RLEXP_OUTPUTS": str(cli.out)})
    assert done.code == 0 and train_steps(cli.run) == [1, 2], done.out + done.err
    assert (cli.run / "checkpoints" / "latest" / "weights" / "policy" / "00001-of-00002.safetensors").is_file()
    assert load_file(cli.run / "model" / "model.safetensors") and done.err.count("step 2/2") + done.out.count("step 2/2") == 1


@pytest.mark.rows("GRPO-086", "GRPO-264")
@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"model__compile": True}, "model.compile=true does not go with strategy=fsdp2"),
        ({"reward__overlap": True}, "strategy.gather_for_generation=false does not go with reward.overlap=true"),
        ({"generation__cuda_graphs": True}, "strategy.gather_for_generation=false does not go with generation.cuda_graphs=true"),
    ],
)
def test_what_does_not_go_together_in_step(values: dict[str, object], told: str) -> None:
    config = default_with(strategy=FSDP2StrategyConfig(gather_for_generation=False), cluster__processes_per_node=2, **values)
    assert [problem[: len(told)] for problem in problems(config)] == [told]


def test_what_exchanges_at_the_same_time() -> None:
    reward = RewardConfig(terms={"model": ModelRewardConfig(path="x")}, overlap=True)
    values = {"strategy": FSDP2StrategyConfig(), "cluster__processes_per_node": 2, "reward": reward}
    assert list(problems(default_with(**values, generation=VLLMGenerationConfig()))) == []
    (told,) = problems(default_with(**values, generation=VLLMGenerationConfig(tensor_parallel_size=2)))
    assert told.startswith("reward.overlap=true does not go with reward=model, strategy=fsdp2 and generation.tensor_parallel_size=2")
