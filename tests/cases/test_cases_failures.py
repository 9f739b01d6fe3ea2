"""What a run does when its sampler gives no numbers, and which checkpoint is the best one."""

from __future__ import annotations

import json
import math
import re

import pytest

NAN = {"nan": {"ids": [40, 41, 42], "logprobs": [-1.0, -1.0, None]}, "none": {"ids": [40, 41, 42], "logprobs": None}}


@pytest.mark.cases("S47")
@pytest.mark.rows("ASYNC-136")
@pytest.mark.parametrize(("kind", "token"), [("nan", 2), ("none", 0)])
def test_the_sampler_returns_no_number(kind: str, token: int, case) -> None:
    case.tasks({"prompt": "1+2="}, {"prompt": "3+4="})
    case.answers([[40, 41], [42], [43], [44]], [[50, 51], [52], [53], NAN[kind]])
    case.scores(0.0, 1.0)
    overrides = ["algorithm.num_generations=4", "trainer.max_steps=2"]
    stopped = case.train(*overrides, where="stopped", code=1)
    said = stopped.done.err.splitlines()[-1]
    assert f"gave no log-prob at step 2, rollout (0, 1, 'policy', 3), token {token}" in said and "generation.on_missing_logprob=mask" in said
    dump = stopped.folder / re.search(r"saved in (\S+)\)", said)[1]
    assert dump.is_file() and stopped.json("status.json")["status"] == "failed" and said.removeprefix("error: ") == stopped.json("status.json")["reason"]
    assert [line["step"] for line in stopped.lines()] == [1], "no step was made with a made-up ratio"

    masked = case.train(*overrides, "generation.on_missing_logprob=mask", where="masked")
    assert "sampling/missing_logprobs" not in masked.metrics(1) and masked.metrics(2)["sampling/missing_logprobs"] == (1 if kind == "nan" else 3)
    assert all(value is not None and math.isfinite(value) for value in masked.metrics(2).values() if not isinstance(value, str))
    # advantages -1/2, 1/2, -1/2, 1/2 over 2, 1, 1 and 3 tokens; the masked terms are out of the sum, the rollout's length stays in the count
    left = 2 if kind == "nan" else 0
    assert masked.metrics(2)["loss"] == pytest.approx(-(-0.5 * 2 + 0.5 - 0.5 + 0.5 * left) / 7, abs=1e-6)


SCORES = """
REWARD, LOSS = {2: 0.2, 4: 0.5, 6: 0.4}, {2: 0.3, 4: 0.1, 6: 0.05}

def score(completions, trainer_state):
    return [REWARD.get(trainer_state.global_step, 0.9) if not trainer_state.training else float(i) for i, _ in enumerate(completions)]

def minus_loss(completions, trainer_state):
    return [-LOSS.get(trainer_state.global_step, 1.0)] * len(completions)
"""


@pytest.mark.cases("S44")
@pytest.mark.parametrize(("metric", "best", "kept"), [("reward", 4, [4, 6]), ("rewards/minus_loss/mean", 6, [6])])
def test_best_means_the_metric_that_was_chosen(metric: str, best: int, kept: list[int], case) -> None:
    case.tasks(*[{"prompt": f"{n}+1="} for n in range(8)])
    case.answers([[40, 41], [42]])
    case.rewards(SCORES)
    evaluation = ["evaluation=default", "data.eval_size=2", "evaluation.steps=2", f"checkpoint.metric={metric}"]
    keep = ["checkpoint.keep_last=1", "checkpoint.keep_best=1", "checkpoint.steps=2", "trainer.max_steps=6", "algorithm.num_generations=2"]
    run = case.train(*evaluation, *keep, terms={"score": 1.0, "minus_loss": 0.0})
    assert [line["reward"] for line in run.lines("eval")] == pytest.approx([0.9, 0.2, 0.5, 0.4])
    assert sorted(path.name for path in (run.folder / "checkpoints").glob("step_*")) == [f"step_{step:06d}" for step in kept]
    assert json.loads((run.folder / "checkpoints" / "latest" / "meta.json").read_text())["step"] == 6
    summary = run.json("summary.json")
    assert summary["best_checkpoint"] == {"step": best, metric: pytest.approx({4: 0.5, 6: -0.05}[best])}
    assert summary["evaluation"]["best"]["step"] == best
