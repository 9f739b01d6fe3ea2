"""Prompts longer than the model's context or data.max_prompt_length."""

from __future__ import annotations

import pytest

from rlexp.config.errors import UserError
from rlexp.data.overlong import fit_prompts
from rlexp.data.tasks import TaskData, TaskOrder, task_data


def data(*lengths: int, held_out: tuple[int, ...] = ()) -> TaskData:
    return task_data([{"prompt": "x" * length or "", "n": length} for length in lengths], [{"prompt": "y" * length} for length in held_out])


def fit(tasks: TaskData, mode: str, context: int = 32, max_length: int | None = None) -> tuple[TaskData, int]:
    return fit_prompts(tasks, list, context=context, max_length=max_length, mode=mode)


@pytest.mark.cases("S46")
def test_error_names_row_and_lengths() -> None:
    with pytest.raises(UserError, match=r"training task 1 .*40 > 32.*data.overlong_prompt=drop or cut_left"):
        fit(data(30, 40), "error")
    fitted, longest = fit(data(30, 31), "error")
    assert (len(fitted.train), longest, fitted.dropped, fitted.cut, fitted.prompt_limit) == (2, 31, 0, 0, None)
    with pytest.raises(UserError, match="leaves none of the model's context of 32"):
        fit(data(32), "error")
    with pytest.raises(UserError, match=r"held-out task 0 .*more than data.max_prompt_length: 12 > 10; raise it"):
        fit(data(9, held_out=(12,)), "error", max_length=10)
    with pytest.raises(UserError, match="training task 0: the prompt has no tokens"):
        fit(data(0), "cut_left")


@pytest.mark.cases("S46")
def test_drop_and_cut_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    dropped, longest = fit(data(40, 30, 50, 7, held_out=(60, 3)), "drop")
    assert [task["n"] for task in dropped.train] == [30, 7]
    assert (len(dropped.held_out), dropped.dropped, longest) == (1, 3, 30)
    assert "3 tasks left out" in caplog.text
    assert TaskOrder(dropped, seed=1, shuffle=False, prompts_per_batch=2).batch(0)[1][:2] == (0, 1)
    cut, longest = fit(data(40, 30), "cut_left")
    assert [task["n"] for task in cut.train] == [40, 30]
    assert (cut.cut, cut.dropped, longest, cut.prompt_limit) == (1, 0, 31, 31)
    assert fit(data(40, 30), "cut_left", max_length=12)[0].prompt_limit == 12
    with pytest.raises(UserError, match="leaves no training task"):
        fit(data(40), "drop")


def test_a_stream_is_measured_as_it_is_read() -> None:
    class Stream:
        def __iter__(self):
            return iter([{"prompt": "x" * length} for length in (3, 40, 5)])

    fitted, longest = fit(TaskData(Stream(), [], "print"), "drop")
    assert longest == 0 and [len(task["prompt"]) for _ in range(2) for task in fitted.train] == [3, 5, 3, 5]
    assert fitted.dropped == 1  # the second pass does not count again
    failing, _ = fit(TaskData(Stream(), [], "print"), "error")
    with pytest.raises(UserError, match=r"training task 1 .*40 > 32"):
        list(failing.train)
