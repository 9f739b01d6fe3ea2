"""Which tasks are in which generation batch."""

from __future__ import annotations

from collections import Counter

import pytest

from rlexp.config.errors import UserError
from rlexp.data.tasks import TaskData, TaskOrder, task_data


class Stream:
    """Tasks that can be iterated again but have no length; counts how many were read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read = 0

    def __iter__(self):
        for number in range(self.size):
            self.read += 1
            yield {"prompt": f"p{number}", "n": number}


def tasks(count: int) -> TaskData:
    return task_data([{"prompt": f"p{number}", "n": number} for number in range(count)], [])


def stream(count: int, buffer: int = 4) -> TaskData:
    return TaskData(Stream(count), [], "print", shuffle_buffer=buffer)


def order(data: TaskData, size: int, seed: int = 5, shuffle: bool = True) -> TaskOrder:
    return TaskOrder(data, seed=seed, shuffle=shuffle, prompts_per_batch=size)


def numbers(the_order: TaskOrder, *batches: int) -> list[int]:
    return [task["n"] for batch in batches for _, _, task in the_order.batch(batch)]


@pytest.mark.cases("S28")
@pytest.mark.rows("GRPO-094")
def test_incomplete_chunk_is_left_out_and_reported() -> None:
    a = order(tasks(10), 4)
    assert (a.batches_per_epoch, a.left_over) == (2, 2)  # 2 epochs are 4 batches
    assert [epoch for number in range(4) for epoch, _, _ in a.batch(number)] == [0] * 8 + [1] * 8
    for epoch in (0, 1):
        seen = numbers(a, 2 * epoch, 2 * epoch + 1)
        assert len(set(seen)) == 8
    b = order(tasks(9), 3)
    assert (b.batches_per_epoch, b.left_over) == (3, 0)
    assert sorted(numbers(b, 0, 1, 2)) == list(range(9))


@pytest.mark.rows("GRPO-091", "GRPO-097")
@pytest.mark.cases("S24")
def test_order_is_a_pure_function_of_seed_and_batch_number() -> None:
    first, second = order(tasks(12), 3), order(tasks(12), 3)
    forward = [numbers(first, number) for number in range(8)]
    backward = [numbers(second, number) for number in reversed(range(8))]
    assert forward == backward[::-1]
    assert forward[:4] != forward[4:]  # a new order each epoch
    assert forward[:4] != [numbers(order(tasks(12), 3, seed=6), number) for number in range(4)]
    assert numbers(order(tasks(12), 3, shuffle=False), 0, 1, 2, 3, 4) == [*range(12), 0, 1, 2]
    epoch, index, task = first.batch(5)[0]
    assert (epoch, task["n"]) == (1, index)


@pytest.mark.cases("S29")
def test_fewer_tasks_than_one_batch() -> None:
    with pytest.raises(UserError, match=r"prompts_per_batch=4 needs at least 4 training tasks, but the dataset has 3"):
        order(tasks(3), 4)
    with pytest.raises(UserError, match=r"prompts_per_batch=4 needs at least 4 training tasks, but the dataset has 3"):
        order(stream(3), 4).batch(0)


def test_empty_dataset() -> None:
    for make in (lambda: task_data([], []), lambda: order(TaskData([], [], ""), 1), lambda: order(stream(0), 1).batch(0)):
        with pytest.raises(UserError, match=r"no training tasks|is empty"):
            make()


@pytest.mark.rows("GRPO-096", "GRPO-105")
def test_stream_is_shuffled_in_a_buffer_and_drops_the_incomplete_chunk() -> None:
    a = order(stream(11), 4)
    assert a.batches_per_epoch is None
    first = numbers(a, 0, 1)
    assert len(set(first)) == 8 and first != list(range(8))
    assert max(numbers(order(stream(11), 1), 0)) < 4  # only what fits the buffer can come first
    assert [a.batch(number)[0][0] for number in range(4)] == [0, 0, 1, 1]
    assert numbers(a, 2, 3) != first
    assert numbers(order(stream(11), 4, shuffle=False), 0, 1, 2) == [*range(8), 0, 1, 2, 3]
    assert Counter(numbers(order(stream(8), 4), 0, 1)) == Counter(range(8))


def test_stream_can_be_asked_again_and_back() -> None:
    data = stream(20)
    a = order(data, 4)
    batches = [numbers(a, number) for number in range(4)]
    read = data.train.read  # type: ignore[union-attr]
    assert numbers(a, 3) == batches[3] and data.train.read == read  # type: ignore[union-attr]
    assert numbers(a, 1) == batches[1]
    assert numbers(a, 3) == batches[3]


@pytest.mark.parametrize("make", [lambda: tasks(10), lambda: stream(10)])
@pytest.mark.cases("S43")
def test_position_and_fingerprint_survive_a_checkpoint(make) -> None:
    whole = order(make(), 3)
    expected = [numbers(whole, number) for number in range(7)]
    stopped = order(make(), 3)
    for number in range(4):
        stopped.batch(number)
    state = stopped.state_dict()
    assert state == {"position": 4, "fingerprint": make().fingerprint}
    resumed = order(make(), 3)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert [numbers(resumed, number) for number in range(4, 7)] == expected[4:]


def test_other_data_are_refused_on_resume() -> None:
    state = order(tasks(10), 3).state_dict()
    with pytest.raises(UserError, match="not those of the checkpoint"):
        order(tasks(9), 3).load_state_dict(state)


def test_epochs_of_batches() -> None:
    assert order(tasks(12), 3).epoch_of(6) == 1.5
