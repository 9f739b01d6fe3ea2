"""Requests to stop, in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from rlexp.launch.signals import handling, stop_request

STEPS = """
import signal, sys, time
from rlexp.launch.signals import handling, stop_request

previous = []
signal.signal(signal.SIGUSR2, lambda number, frame: previous.append(number))
try:
    with handling() as stop:
        print("ready", flush=True)
        while not stop.requested:
            time.sleep(0.01)
        assert stop_request() is stop
        print("saving", flush=True)
        time.sleep(float(sys.argv[1]))  # saving
    stop.chain()
    print(stop.reason, previous, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(9)
sys.exit(75)
"""


def begin(saving: float) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", STEPS, str(saving)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "stopped by SIGTERM []"), (signal.SIGINT, "stopped by SIGINT []")])
def test_a_signal_is_a_request(number: signal.Signals, reason: str) -> None:
    process = begin(0.0)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 75 and out == f"saving\n{reason}\n" and err.startswith(f"{number.name}: finishing this step, then saving")


def test_the_previous_handler_is_called_after_saving() -> None:
    process = begin(0.3)
    process.send_signal(signal.SIGUSR2)
    out, _ = process.communicate(timeout=20)
    assert out == f"saving\nstopped by SIGUSR2 [{signal.SIGUSR2:d}]\n".replace(f"{signal.SIGUSR2:d}", repr(signal.SIGUSR2))


def test_a_second_ctrl_c_stops_at_once() -> None:
    process = begin(60.0)
    process.send_signal(signal.SIGINT)
    assert process.stdout and process.stdout.readline() == "saving\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (9, "interrupted\n")


def test_a_second_sigterm_changes_nothing() -> None:
    process = begin(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.stdout and process.stdout.readline() == "saving\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (75, "stopped by SIGTERM []\n")


def test_handlers_are_put_back_and_threads_install_none() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with handling() as stop:
        assert signal.getsignal(signal.SIGTERM) != before and not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 5
        while not stop.requested and time.monotonic() < deadline:
            time.sleep(0.01)
        assert stop.requested and stop.reason == "stopped by SIGTERM"
    assert signal.getsignal(signal.SIGTERM) == before

    def in_thread() -> None:
        with handling():
            assert not stop_request().requested

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == before
