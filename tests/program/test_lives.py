"""Runs that are stopped, killed, starved and tampered with, and what the same command makes of them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import SPAWN
from programs import Programs
from run_folders import final_weights, metrics, rollouts, status, train_steps
from small_runs import Cli

STEPS = "trainer.max_steps=14"
NOISE = ["reward.terms.digits.sleep=0.03", "reward.terms.digits.reseed=true"]
"""random pauses, and garbage in the global random states, at each call of the reward"""


@pytest.fixture(scope="module")
def whole(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of STEPS."""
    cli = Cli(programs, tmp_path_factory.mktemp("whole"))
    done = cli.train(STEPS)
    assert done.code == 0, done.err
    return cli.run


def assert_same(run: Path, whole: Path) -> None:
    """Byte for byte the same weights and rollouts, and the same metrics but for the clock."""
    assert final_weights(run) == final_weights(whole)
    assert metrics(run) == metrics(whole)
    assert rollouts(run) == rollouts(whole)


def assert_finished(cli: Cli, *overrides: str) -> None:
    """The same command goes on to the end."""
    done = cli.train(*overrides)
    assert done.code == 0 and status(cli.run)["status"] == "finished", done.err


# killed and stopped


@pytest.mark.rows("GRPO-250", "GRPO-253")
@pytest.mark.cases("S42", "S43")
@pytest.mark.parametrize("noise", [[], NOISE], ids=["quiet", "noisy"])
def test_kill_9_at_three_moments_of_the_clock(noise: list[str], whole: Path, cli: Cli) -> None:
    moments = random.Random()
    for _ in range(3):
        after = moments.uniform(0.0, 0.06)
        killed = cli.struck(signal.SIGKILL, after, STEPS, *noise)
        assert killed.code in (-9, 0), killed.err
    assert_finished(cli, STEPS, *noise)
    assert not list(cli.run.rglob("*.tmp")) and not list(cli.run.rglob(".writing*"))
    assert_same(cli.run, whole)


REWARD = """
import os, signal, threading

def score(completions, completion_ids, trainer_state):
    name, _, when = os.environ.get("STRIKE", "").partition(":")
    if trainer_state.training and str(trainer_state.global_step) == when:
        if name == "exit":
            os._exit(5)
        delay = float(os.environ.get("DELAY", "0"))
        send = lambda: os.kill(os.getpid(), getattr(signal, name))
        threading.Timer(delay, send).start() if delay else send()
    print("x" * 100_000)
    return [sum(character.isdigit() for character in text[-1]["content"]) + 0.01 * len(ids) for text, ids in zip(completions, completion_ids)]
"""
STRUCK = ["evaluation=none", "checkpoint.steps=3", STEPS]
"""with REWARD, which is told by its environment when to send a signal to the process, or to end it"""


@pytest.fixture(scope="module")
def spared(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of STRUCK."""
    cli = Cli(programs, tmp_path_factory.mktemp("spared"))
    assert_finished(cli, *cli.rewards(REWARD), *STRUCK)
    return cli.run


@pytest.mark.rows("GRPO-250")
@pytest.mark.parametrize(
    ("delay", "signals"),
    [("0", [("SIGTERM", 0), ("SIGINT", 2), ("SIGUSR2", 4)]), ("0.004", [("SIGTERM", 2)])],
    ids=["while_generating", "in_the_step"],
)
def test_signals_finish_the_step_and_the_run_goes_on_bitwise(delay: str, signals: list[tuple[str, int]], spared: Path, cli: Cli) -> None:
    """Each batch gives two steps: the signal comes while the batch is made that follows step `when`, or a moment later."""
    reward = [*cli.rewards(REWARD), *STRUCK]
    for name, when in signals:
        done = cli.train(*reward, env={"STRIKE": f"{name}:{when}", "DELAY": delay})
        assert done.code == 75 and f"{name}: finishing this step" in done.err, done.err
        told, steps = status(cli.run), train_steps(cli.run)
        assert (told["status"], told["reason"], told["exit_code"]) == ("preempted", f"stopped by {name}", 75)
        assert steps == list(range(1, when + 2)) or (delay != "0" and steps == list(range(1, when + 3)))
        assert json.loads((cli.run / "checkpoints" / "latest" / "meta.json").read_text())["step"] == steps[-1] and not (cli.run / "lock").exists()
        assert json.loads((cli.run / "summary.json").read_text())["status"] == "preempted" and not (cli.run / "model").exists()
    assert_finished(cli, *reward)
    assert_same(cli.run, spared)


def test_a_reward_that_ends_the_process(spared: Path, cli: Cli) -> None:
    reward = [*cli.rewards(REWARD), *STRUCK]
    done = cli.train(*reward, env={"STRIKE": "exit:4"})
    assert done.code == 5 and status(cli.run)["status"] == "running", "nobody could say more"
    assert_finished(cli, *reward)
    assert_same(cli.run, spared)


def test_two_identical_commands_at_once(programs: Programs, tmp_path: Path) -> None:
    """Without run.name the second takes NAME-2; with it, it is refused (tests/launch)."""
    cli = Cli(programs, tmp_path)
    arguments = [option for option in cli.options("trainer.max_steps=2", *NOISE) if not option.startswith("run.name")]
    done = programs.run("program.twice", *arguments, cwd=tmp_path, env={"RLEXP_OUTPUTS": str(cli.out), SPAWN: "1"})
    assert done.code == 0, done.err
    name = "none-grpo-dapo-random_tiny-s42"
    assert sorted(path.name for path in cli.out.iterdir()) == [name, f"{name}-2"]
    assert_same(cli.out / f"{name}-2", cli.out / name)


# rewards that hang or end the process

HANGING = {
    "sync": "import time\ndef score(completions): time.sleep(1000)\n",
    "async": "import asyncio\nasync def score(completions): await asyncio.sleep(1000)\n",
    "async_that_blocks": "import time\nasync def score(completions): time.sleep(1000)\n",
}


def processes_of(session: int) -> list[int]:
    """Live processes of a session: a program of these tests and its children."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.name))
    return found


@pytest.mark.cases("S49")
@pytest.mark.parametrize("kind", HANGING)
def test_a_hanging_reward_stops_the_run_in_time(kind: str, cli: Cli) -> None:
    reward = cli.rewards(HANGING[kind])
    began = time.monotonic()
    done = cli.train(*reward, "reward.timeout=1", "evaluation=none", STEPS)
    assert time.monotonic() - began < 20
    assert done.code == 1 and "Traceback" not in done.err and status(cli.run)["status"] == "failed"
    said = done.err.splitlines()[-1]
    assert "reward 'custom' was not done after reward.timeout=1 s; raise reward.timeout" in said and "reward.terms.custom" in said
    assert processes_of(cli.programs.pid) == []


@pytest.mark.parametrize(("kind", "on_error"), [("sync", "none"), ("async", "value")])
def test_a_hanging_reward_may_be_scored_and_the_run_goes_on(kind: str, on_error: str, cli: Cli) -> None:
    reward = [*cli.rewards(HANGING[kind]), "reward=[custom,digits]", "reward.timeout=0.3", f"reward.on_error={on_error}", "reward.error_value=-1"]
    done = cli.train(*reward[1:], "evaluation=none", "trainer.max_steps=2")
    assert done.code == 0, done.err
    line = metrics(cli.run)[0]
    assert line["rewards/custom/errors"] == 1.0 and line["rewards/digits/errors"] == 0.0 and line["nondeterminism/reward_timeout"] == 0.5
    assert line.get("rewards/custom/mean") == (None if on_error == "none" else -1.0) and line["grad_norm"] > 0
    assert done.err.count("was not done after reward.timeout") == 1 and processes_of(cli.programs.pid) == []


# disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB; only root may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run([shutil.which("mount") or "false", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no file system of its own: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path, leave: int) -> None:
    """Leave so many bytes free."""
    (disk / "filler").unlink(missing_ok=True)
    free = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - leave))


@pytest.mark.parametrize(
    ("leave", "says"),
    [(40_000, "no space left on the disk: free some"), (280_000, "no space left on the disk for the checkpoint of step")],
    ids=["a_file", "a_checkpoint"],
)
def test_a_disk_that_fills_up(leave: int, says: str, disk: Path, whole: Path, programs: Programs, tmp_path: Path) -> None:
    cli = Cli(programs, tmp_path)
    cli.out = disk
    options = [STEPS, "checkpoint.keep_last=9"]
    fill(disk, 0)
    refused = cli.train(*options)
    assert refused.code == 1 and "cannot be written (No space left on device)" in refused.err and [path.name for path in disk.iterdir()] == ["filler"]
    fill(disk, leave)
    done = cli.train(*options)
    assert done.code == 1 and "Traceback" not in done.err and says in done.err and "run the same command" in done.err, done.err
    assert not list(disk.rglob("*.tmp")) and not list(disk.rglob(".writing*")) and not (disk / "r" / "lock").exists()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    frozen = cli.train(*options)
    assert frozen.code == 1 and "Traceback" not in frozen.err and "cannot be written (Read-only file system)" in frozen.err, frozen.err
    subprocess.run(["mount", "-o", "remount,rw,size=50m", disk], check=True)
    assert_finished(cli, *options)
    assert final_weights(cli.run) == final_weights(whole) and metrics(cli.run) == metrics(whole)


# tampering between two lives


@pytest.fixture(scope="module")
def killed(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its fourth step."""
    cli = Cli(programs, tmp_path_factory.mktemp("killed"))
    done = cli.train(STEPS, env={"RLEXP_FAULT": "4:backward:before"})
    assert done.code == -9 and train_steps(cli.run) == [1, 2, 3, 4]
    return cli.run


@pytest.fixture
def half(killed: Path, cli: Cli) -> Cli:
    """A copy of that run, to tamper with."""
    shutil.copytree(killed, cli.run, symlinks=True)
    return cli


def test_deleted_checkpoints_mean_a_start_from_the_beginning(half: Cli, whole: Path) -> None:
    shutil.rmtree(half.run / "checkpoints")
    assert_finished(half, STEPS)
    assert_same(half.run, whole)


def test_a_deleted_newest_checkpoint_means_the_one_before(half: Cli, whole: Path) -> None:
    shutil.rmtree((half.run / "checkpoints" / "latest").resolve())
    done = half.train(STEPS)
    assert done.code == 0 and "continuing from step_000003" in done.err
    assert_same(half.run, whole)


HARMS = {
    "cut": ("state.pt", lambda data: data[: len(data) // 2]),
    "empty": ("state.pt", lambda data: b""),
    "zeros": ("state.pt", lambda data: b"\x00" * len(data)),
    "cut_weights": ("weights/policy.safetensors", lambda data: data[: len(data) // 2]),
    "zero_weights": ("weights/policy.safetensors", lambda data: b"\x00" * len(data)),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_checkpoint_is_named_with_what_to_do(harm: str, half: Cli, whole: Path) -> None:
    name, change = HARMS[harm]
    newest = (half.run / "checkpoints" / "latest").resolve()
    (newest / name).write_bytes(change((newest / name).read_bytes()))
    done = half.train(STEPS)
    said = done.err.splitlines()[-1]
    assert done.code == 1 and "Traceback" not in done.err and said.startswith(f"error: the checkpoint {newest} is damaged ("), done.err
    assert said.endswith("): delete that folder; the next older one, step_000003, is used then")
    if harm == "cut":
        shutil.rmtree(newest)
        assert_finished(half, STEPS)
        assert_same(half.run, whole)


def test_an_edited_metrics_file_is_told_and_no_step_comes_twice(half: Cli, whole: Path) -> None:
    path = half.run / "metrics.jsonl"
    path.write_text(path.read_text().replace('"split": "train"', '"note": "edited", "split": "train"', 1))
    done = half.train(STEPS)
    assert done.code == 0 and "metrics.jsonl was changed since step 4 was saved" in done.err
    assert train_steps(half.run) == train_steps(whole) and final_weights(half.run) == final_weights(whole)
    edited = [{key: value for key, value in line.items() if key != "note"} for line in metrics(half.run)]
    assert edited == metrics(whole)


def test_other_data_are_refused(cli: Cli) -> None:
    tasks = cli.folder / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(9)))
    data = ["data=files", "data.path=tasks.jsonl", "data.eval_size=1"]
    assert cli.train(*data, "trainer.max_steps=1").code == 0
    tasks.write_text(tasks.read_text().replace("3+1=", "3+9="))
    done = cli.train(*data, "trainer.max_steps=2")
    assert done.code == 1 and "the data changed since step_000001 was saved: restore the old data, or start a new run" in done.err
    assert "Traceback" not in done.err and (cli.run / "checkpoints" / "latest").exists()


# other settings


def test_longer_other_never_and_from_a_checkpoint(cli: Cli) -> None:
    slow = "optimizer.learning_rate=0.001"
    assert_finished(cli, slow, "trainer.max_steps=2")
    assert_finished(cli, slow, "trainer.max_steps=4")
    assert train_steps(cli.run) == [1, 2, 3, 4]
    before = final_weights(cli.run)
    refused = cli.train("trainer.max_steps=4", "optimizer.learning_rate=0.02", "algorithm.beta=0.1")
    assert refused.code == 1 and "algorithm.beta: 0.0 -> 0.1" in refused.err and "optimizer.learning_rate: 0.001 -> 0.02" in refused.err
    assert "run.name=r-b" in refused.err and final_weights(cli.run) == before

    assert_finished(cli, "trainer.max_steps=2", "run.resume=never", "optimizer.learning_rate=0.02")
    assert train_steps(cli.run) == [1, 2] and final_weights(cli.out / "r.old-1") == before

    start = ["run.name=next", "run.start_from=out/r.old-1", "algorithm.beta=0.1", "trainer.max_steps=3", slow]
    killed = cli.train(*start, env={"RLEXP_FAULT": "2:backward:after"})
    assert killed.code == -9
    shutil.rmtree(cli.out / "r.old-1")
    done = cli.train(*start)
    assert done.code == 0, done.err
    kl = [line["kl"] for line in metrics(cli.out / "next") if line["split"] == "train"]
    assert kl[0] == 0.0 and all(value > 0 for value in kl[1:]), "the reference is the weights it started from"


def test_weights_of_another_kind_of_model_are_no_start(cli: Cli) -> None:
    assert_finished(cli, "trainer.max_steps=1")
    for change in ("model.hidden_size=32", "peft=lora"):
        done = cli.train("run.name=next", "run.start_from=out/r", change)
        assert done.code == 1 and "Traceback" not in done.err and "weights of policy do not fit this model" in done.err and not (cli.out / "next").exists()
    folder = cli.train("run.name=next", "run.start_from=out/r/model")
    assert folder.code == 1 and "model=hub model.path=out/r/model" in folder.err
