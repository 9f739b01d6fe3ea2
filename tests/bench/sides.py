"""A measured side in a thread of the test, instead of a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from typing import Any


@contextmanager
def running(main: Callable[..., None], *arguments: Any) -> Iterator[Callable[[], dict[str, Any]]]:
    """Start main(pipe, *arguments); yields what lets it work through one batch. It is told to stop at the end."""
    ours, theirs = Pipe()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            main(theirs, *arguments)
        except BaseException as error:
            raised.append(error)
            theirs.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def answer() -> dict[str, Any]:
        try:
            assert ours.poll(60)
            return ours.recv()
        except EOFError:
            raise raised[0] from None

    def turn() -> dict[str, Any]:
        ours.send("step")
        return answer()

    answer()
    yield turn
    ours.send("stop")
    thread.join(30)
    assert not thread.is_alive() and not raised
