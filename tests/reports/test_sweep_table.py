"""The table of a sweep."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_runs import write_run

from rlexp.config.errors import UserError
from rlexp.records.sweep import forget_job, record_jobs, recorded_jobs, stop_mark
from rlexp.reports.sweep_table import csv_table, read_sweep, reasons_text, text_table


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three jobs: one finished, one that failed in training, one that never made a folder; and one not started."""
    folder = tmp_path_factory.mktemp("sweeps") / "mysweep"
    write_run(folder / "a", steps=40, seed=1)
    write_run(folder / "b", steps=20, seed=2, status="failed", reason="ValueError: seed two")
    jobs = {
        name: ["experiment=addition", f"loss={loss}", f"run.seed={seed}"]
        for name, loss, seed in (("a", "dapo", 1), ("b", "grpo", 2), ("c", "dapo", 10), ("d", "grpo", 3))
    }
    record_jobs(folder, jobs)
    record_jobs(folder, {"c": jobs["c"]}, {"c": "loss.epsilon: too large"})
    return folder


def test_rows_and_columns(sweep: Path) -> None:
    table = read_sweep(sweep)
    assert table.keys == ["loss", "run.seed"]  # the experiment is the same everywhere
    assert [(row.name, row.results["status"], row.reason) for row in table.rows] == [
        ("a", "finished", ""),
        ("b", "failed", "ValueError: seed two"),
        ("c", "failed", "loss.epsilon: too large"),
        ("d", "not started", ""),
    ]
    first = table.rows[0].results
    assert (first["steps"], first["seconds"]) == (40, 61.4)
    assert (first["accuracy_start"], first["accuracy_end"]) == (pytest.approx(0.34), pytest.approx(0.34 + 0.6 * (1 - 2.718281828 ** (-40 / 30))))
    lines = [json.loads(line) for line in (sweep / "a" / "metrics.jsonl").read_text().splitlines()]
    assert first["reward"] == pytest.approx(sum(line["reward"] for line in lines if line["split"] == "train" and line["step"] > 30) / 10)
    assert table.rows[0].objective == first["accuracy_end"] and table.rows[3].objective is None


def test_as_text(sweep: Path) -> None:
    lines = text_table(read_sweep(sweep)).splitlines()
    assert lines[0].split() == ["job", "loss", "run.seed", "status", "steps", "reward", "accuracy_start", "accuracy_end", "accuracy_best", "seconds"]
    assert lines[2].split()[:5] == ["1", "dapo", "1", "finished", "40"] and lines[5].split() == [
        "4",
        "grpo",
        "3",
        "not",
        "started",
        "-",
        "-",
        "-",
        "-",
        "-",
        "-",
    ]
    assert len(lines) == 6
    assert reasons_text(read_sweep(sweep)).splitlines() == ["", "grpo 2: ValueError: seed two", "", "dapo 10: loss.epsilon: too large"]


def test_sorting(sweep: Path) -> None:
    table = read_sweep(sweep)
    table.sort("run.seed")
    assert [row.name for row in table.rows] == ["a", "b", "d", "c"]  # 10 after 3
    table.sort("accuracy")
    assert [row.name for row in table.rows] == ["a", "b", "d", "c"]  # largest first, empty ones last, in the order they had
    table.sort("run")
    assert [row.name for row in table.rows] == ["a", "b", "c", "d"]
    with pytest.raises(UserError, match=r"--sort colour: no such column; there are run, job, loss, run\.seed, status"):
        table.sort("colour")


def test_as_csv(sweep: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table(read_sweep(sweep)))))
    assert [row["run"] for row in rows] == ["a", "b", "c", "d"] and rows[1]["reason"] == "ValueError: seed two" and rows[3]["reward"] == ""
    assert float(rows[0]["accuracy_end"]) == read_sweep(sweep).rows[0].results["accuracy_end"]


def test_a_folder_of_runs_that_no_sweep_made(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / f"run-{seed}", steps=20, seed=seed)
    write_run(tmp_path / "run-3", steps=20, seed=3, status="running", host=__import__("socket").gethostname(), pid=2**22 + 1)
    table = read_sweep(tmp_path)
    assert table.keys == ["run.seed"] and [row.choices["run.seed"] for row in table.rows] == ["1", "2", "3"]
    assert (table.rows[2].results["status"], table.rows[2].reason) == ("died", "its process is gone")


def test_jobs_are_added_to_the_record(tmp_path: Path) -> None:
    record_jobs(tmp_path, {"a": ["run.seed=1"]}, {"a": "broke"})
    record_jobs(tmp_path, {"b": ["run.seed=2"]})
    record_jobs(tmp_path, {"b": ["run.seed=2"]}, flags=["--config-dir", "mine"])
    record_jobs(tmp_path, {"b": ["run.seed=2"]}, {"b": "broke too"})
    first = {"overrides": ["run.seed=1"], "flags": [], "reason": "broke"}
    assert recorded_jobs(tmp_path) == {"a": first, "b": {"overrides": ["run.seed=2"], "flags": ["--config-dir", "mine"], "reason": "broke too"}}
    forget_job(tmp_path, "b")
    assert recorded_jobs(tmp_path) == {"a": first}


def test_a_job_that_was_stopped_before_it_started(tmp_path: Path) -> None:
    record_jobs(tmp_path, {"a": ["run.seed=1"], "b": ["run.seed=2"]}, {"b": "by the user"})
    stop_mark(tmp_path / "b").parent.mkdir()
    stop_mark(tmp_path / "b").touch()
    assert [row.results["status"] for row in read_sweep(tmp_path).rows] == ["not started", "stopped"]


def test_the_program(sweep: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "rlexp.sweep", *arguments], capture_output=True, text=True, check=False)

    shown = run(str(sweep), "--sort", "run.seed")
    assert shown.returncode == 0 and shown.stdout.splitlines()[2].startswith("1    dapo  1")
    assert run(str(sweep), "--csv").stdout.startswith("run,job,loss,run.seed,status,steps,")
    empty = run(str(tmp_path))
    assert empty.returncode == 1 and empty.stderr.startswith(f"error: {tmp_path} holds no runs") and "Traceback" not in empty.stderr
