"""sweep.pause_at: a run saves at a step, pauses, and is what it would have been when it goes on."""

from __future__ import annotations

import json

from run_folders import final_weights, metrics, rollouts, status, train_steps
from small_runs import Cli

LENGTH = ("trainer.max_steps=5", "optimizer.schedule=linear", "checkpoint.steps=50")


def test_a_pause_changes_nothing(cli: Cli) -> None:
    whole = cli.train(*LENGTH, "run.name=whole")
    assert whole.code == 0, whole.err
    paused = cli.train(*LENGTH, "sweep.pause_at=3")
    assert paused.code == 0 and "paused after 3 steps" in paused.out, paused.err
    assert (status(cli.run)["status"], status(cli.run)["reason"]) == ("paused", "paused at step 3 by the sweep")
    assert json.loads((cli.run / "summary.json").read_text())["status"] == "paused" and not (cli.run / "model").exists()

    again = cli.train(*LENGTH, "sweep.pause_at=2")  # behind it already: nothing to do
    assert again.code == 0 and train_steps(cli.run) == [1, 2, 3] and status(cli.run)["reason"] == "paused at step 3 by the sweep"

    on = cli.train(*LENGTH)
    assert on.code == 0 and status(cli.run)["status"] == "finished" and "reason" not in status(cli.run), on.err
    alone = cli.out / "whole"
    assert (final_weights(cli.run), metrics(cli.run), rollouts(cli.run)) == (final_weights(alone), metrics(alone), rollouts(alone))


def test_ranks_pause_together(cli: Cli) -> None:
    ranks = ("strategy=ddp", "cluster.processes_per_node=2", "trainer.max_steps=4", "trainer.threads=1")
    paused = cli.train(*ranks, "sweep.pause_at=2")
    assert paused.code == 0 and status(cli.run)["status"] == "paused" and train_steps(cli.run) == [1, 2], paused.err
    on = cli.train(*ranks)
    assert on.code == 0 and status(cli.run)["status"] == "finished" and train_steps(cli.run) == [1, 2, 3, 4], on.err


def test_a_job_that_the_user_stopped_does_not_start(cli: Cli) -> None:
    sweep = cli.folder / "sweep"
    (sweep / "stopped").mkdir(parents=True)
    (sweep / "stopped" / "mine").touch()
    refused = cli.train(env={"RLEXP_SWEEP_DIR": str(sweep), "RLEXP_SWEEP_JOB": "mine"})
    assert refused.code == 0 and "mine was stopped by the user" in refused.out and not (sweep / "mine").exists()
