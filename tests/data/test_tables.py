"""data=files and data=hub."""

from __future__ import annotations

import json
import time
from pathlib import Path

import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest

from rlexp.config.data import FilesDataConfig, HubDataConfig
from rlexp.config.errors import UserError
from rlexp.data import files, hub, hub_access
from rlexp.data.tasks import TaskOrder

ROWS = [{"prompt": f"p{number}", "answer": str(number)} for number in range(10)]


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def files_config(path: Path, **changes) -> FilesDataConfig:
    return FilesDataConfig(**{"path": str(path), "eval_size": 0, **changes})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "tasks.jsonl", ROWS)


def test_every_kind_of_file_gives_the_same_tasks(table: Path) -> None:
    folder = table.parent
    (folder / "tasks.json").write_text(json.dumps(ROWS))
    (folder / "tasks.csv").write_text("prompt,answer\n" + "".join(f"{row['prompt']},{row['answer']}\n" for row in ROWS))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "tasks.parquet")
    prints = set()
    for ending in ("jsonl", "json", "csv", "parquet"):
        data = files.load(files_config(folder / f"tasks.{ending}"), seed=1)
        assert list(data.train) == ROWS, ending
        prints.add(data.fingerprint)
    assert len(prints) == 1


def test_folder_and_glob(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", ROWS[5:])
    write(tmp_path / "a.jsonl", ROWS[:5])
    (tmp_path / "notes.txt").write_text("not tasks")
    assert list(files.load(files_config(tmp_path), seed=1).train) == ROWS
    assert list(files.load(files_config(tmp_path / "*.jsonl"), seed=1).train) == ROWS
    data = files.load(files_config(tmp_path, eval_path=str(tmp_path / "b.jsonl"), eval_size=3), seed=1)
    assert list(data.train) == ROWS[:5] and data.held_out == ROWS[5:8]


def test_csv_cells_stay_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('prompt,answer\n"a, ""b""\nc",007\n')
    assert list(files.load(files_config(tmp_path / "t.csv"), seed=1).train) == [{"prompt": 'a, "b"\nc', "answer": "007"}]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.jsonl", '{"prompt": "a"}\n\n{"prompt": \n', r"t\.jsonl:3 is not JSON"),
        ("t.jsonl", "[1]\n", r"t\.jsonl:1 must be an object"),
        ("t.json", '{"prompt": "a"}', r"must hold a list of objects, not dict.*\.jsonl"),
        ("t.json", '[{"prompt": "a"}, 3]', r"t\.json, item 1 must be an object"),
        ("t.csv", "prompt,answer\na\n", r"t\.csv:2 has not as many cells"),
        ("t.csv", "prompt,answer\na,b,c\n", r"t\.csv:2 has not as many cells"),
        ("t.parquet", "hello", "is not parquet"),
        ("t.jsonl", "", "has no rows"),
        ("t.yaml", "a: 1", "unknown kind; use .jsonl, .json, .csv, .parquet"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        files.load(files_config(tmp_path / name), seed=1)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.path=.*nothing.jsonl: no such file"):
        files.load(files_config(tmp_path / "nothing.jsonl"), seed=1)
    with pytest.raises(UserError, match=r"data.path=.*: no such file, folder with .jsonl"):
        files.load(files_config(tmp_path), seed=1)
    write(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(UserError, match=r"data.eval_path=none.jsonl: no such file"):
        files.load(files_config(tmp_path, eval_path="none.jsonl"), seed=1)
    with pytest.raises(UserError, match="nothing is left to train on"):
        files.load(files_config(tmp_path, eval_path=str(tmp_path)), seed=1)


def test_held_out_tasks_are_split_off_by_the_seed(table: Path) -> None:
    data = files.load(files_config(table, eval_size=3), seed=1)
    assert len(data.train) == 7 and len(data.held_out) == 3
    assert sorted([*data.train, *data.held_out], key=lambda task: int(task["answer"])) == ROWS
    assert files.load(files_config(table, eval_size=3), seed=1).held_out == data.held_out
    assert files.load(files_config(table, eval_size=3), seed=4).held_out != data.held_out
    assert len(files.load(files_config(table, eval_size=3, size=5), seed=1).train) == 5
    with pytest.raises(UserError, match=r"data.eval_size=10 leaves none of the 10 tasks to train on"):
        files.load(files_config(table, eval_size=10), seed=1)


def test_prompt_columns_and_templates(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"question": "2+3", "label": 5, "prompts": 1}])
    data = files.load(files_config(path, prompt_column="question", columns={"answer": "label", "other": "prompts"}, conversational=True), seed=1)
    assert list(data.train) == [{"prompt": [{"role": "user", "content": "2+3"}], "answer": 5, "other": 1}]
    assert data.columns == {"answer", "other"}
    data = files.load(files_config(path, prompt_template="Q: {question} \\boxed{{}}", columns={"n": "prompts"}), seed=1)
    assert list(data.train) == [{"prompt": "Q: 2+3 \\boxed{}", "question": "2+3", "label": 5, "n": 1}]
    with pytest.raises(UserError, match="'prompts', which is the name of a reward argument"):
        files.load(files_config(path, prompt_column="question"), seed=1)


@pytest.mark.rows("GRPO-104")
def test_all_missing_columns_at_once(table: Path) -> None:
    with pytest.raises(UserError, match=r"data.columns=\{x: gold\}; data.prompt_column=question: .* has no such column \(columns: answer, prompt\)"):
        files.load(files_config(table, prompt_column="question", columns={"x": "gold"}), seed=1)
    with pytest.raises(UserError, match=r"data.prompt_template asks for \{q\}: "):
        files.load(files_config(table, prompt_template="{q}"), seed=1)
    for template in ("{}", "{0}", "{"):
        with pytest.raises(UserError, match=r"data.prompt_template='.*'(: each place needs the name| cannot be read)"):
            files.load(files_config(table, prompt_template=template), seed=1)


def test_rows_may_have_different_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"prompt": "a", "test": "x"}, {"prompt": [{"role": "user", "content": "b", "name": None}], "gold": 1}])
    data = files.load(files_config(path), seed=1)
    assert data.columns == {"test", "gold"}
    assert data.train[1]["prompt"] == [{"role": "user", "content": "b"}]  # type: ignore[index]
    path = write(tmp_path / "u.jsonl", [{"prompt": "a"}, {"answer": "b"}])
    with pytest.raises(UserError, match=r"training task 1 has no prompt \(columns: answer, prompt\)"):
        files.load(files_config(path), seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset folder like a hub's: two splits."""
    place = tmp_path_factory.mktemp("dataset")
    write(place / "train.jsonl", [{"question": f"q{n}", "answer": f"because\n#### {n}"} for n in range(8)])
    write(place / "test.jsonl", [{"question": f"t{n}", "answer": f"so\n#### {n}"} for n in range(4)])
    return place


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets-cache")


def hub_config(path: object, **changes) -> HubDataConfig:
    given = {"path": str(path), "prompt_column": "question", "eval_size": 2, "answer_pattern": r"####\s*(.+)", "columns": {"gold": "answer"}}
    return HubDataConfig(**{**given, **changes})


def test_local_folder_of_a_dataset(folder: Path) -> None:
    data = hub.load(hub_config(folder, eval_split="test"), seed=1)
    assert list(data.train) == [{"prompt": f"q{n}", "gold": str(n)} for n in range(8)]
    assert list(data.held_out) == [{"prompt": "t0", "gold": "0"}, {"prompt": "t1", "gold": "1"}]
    split = hub.load(hub_config(folder, eval_size=3, size=4), seed=1)
    assert len(split.train) == 4 and len(split.held_out) == 3 and split.fingerprint != data.fingerprint
    listed = hub.load(hub_config(folder, data_files=["test.jsonl"], eval_size=0), seed=1)
    assert [task["prompt"] for task in listed.train] == ["t0", "t1", "t2", "t3"]


@pytest.mark.rows("GRPO-105")
def test_streaming(folder: Path, tmp_path: Path) -> None:
    data = hub.load(hub_config(folder, streaming=True, shuffle_buffer=3, size=5), seed=1)
    assert not data.sized and data.columns == {"gold"} and data.shuffle_buffer == 3
    assert [task["prompt"] for task in data.held_out] == ["q0", "q1"]
    assert [task["prompt"] for task in data.train] == ["q2", "q3", "q4", "q5", "q6"]
    order = TaskOrder(data, seed=1, shuffle=True, prompts_per_batch=5)
    assert {task["prompt"] for _, _, task in order.batch(1)} == {f"q{n}" for n in range(2, 7)}
    assert [task["prompt"] for task in hub.load(hub_config(folder, streaming=True, eval_split="test"), seed=1).train] == [f"q{n}" for n in range(8)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "dev"}, 'data.split=dev.*Unknown split "dev"'),
        ({"config": "other"}, "data.config=other.*BuilderConfig 'other' not found"),
        ({"answer_pattern": r"####"}, "needs a group"),
        ({"answer_pattern": "("}, "is no regular expression"),
        ({"answer_pattern": r"=> (.+)"}, r"finds nothing in answer='because\\n#### \d'"),
        ({"answer_column": "solution"}, r"data.answer_column=solution: .* \(columns: answer, question\)"),
        ({"prompt_column": "prompt"}, "data.prompt_column=prompt: .* has no such column"),
    ],
)
def test_refusals(folder: Path, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        hub.load(hub_config(folder, **changes), seed=1)


def test_offline_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    started = time.monotonic()
    with pytest.raises(UserError, match=r"data.path=someone/nothing: HF_HUB_OFFLINE is set, and the dataset is not in the cache"):
        hub.load(hub_config("someone/nothing"), seed=1)
    assert time.monotonic() - started < 30


def test_no_network_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port where nothing listens; then one where nobody ever answers."""
    import socket

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_access, "REQUEST_SECONDS", 0.5)
    listening = socket.create_server(("127.0.0.1", 0))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    started = time.monotonic()
    for number in (port, listening.getsockname()[1]):
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{number}")
        monkeypatch.setattr(huggingface_hub.hf_api, "ENDPOINT", f"http://127.0.0.1:{number}", raising=False)
        with pytest.raises(UserError, match=r"data.path=someone/nothing: the hub cannot be reached \(.*\), and the dataset is not in the cache"):
            hub.load(hub_config("someone/nothing"), seed=1)
    listening.close()
    assert time.monotonic() - started < 30
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
