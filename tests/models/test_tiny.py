"""model=tiny: its tokenizer, the warm start, the cache, and that the default adds only sometimes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from rlexp.chat.rendering import Renderer
from rlexp.config.data import AdditionDataConfig
from rlexp.config.errors import UserError
from rlexp.config.model import TinyModelConfig
from rlexp.data import addition
from rlexp.models import tiny
from rlexp.models.cache import cache_root, cached, place
from rlexp.models.tokenizer import CHARACTERS, ROLES, SPECIAL, character_tokenizer
from rlexp.records.addition import addition_problem, careless_answer, held_out_operands

SMALL = {"hidden_size": 32, "heads": 2, "layers": 1, "warm_start_digits": 1}


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("RLEXP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_character_is_one_token_and_comes_back():
    tokenizer = character_tokenizer()
    assert len(tokenizer) == len(SPECIAL) + len(CHARACTERS) + len(ROLES) == 103
    ids = tokenizer(CHARACTERS)["input_ids"]
    assert ids == list(range(4, 100))
    assert tokenizer.decode(ids) == CHARACTERS
    assert tokenizer("é")["input_ids"] == [tokenizer.unk_token_id] == [3]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.padding_side) == (0, 2, None, "left")
    assert tokenizer.decode(tokenizer("my user, the assistant")["input_ids"]) == "my user, the assistant"


def test_the_frame_of_a_chat_costs_few_tokens():
    rendered = Renderer(character_tokenizer()).render([{"role": "user", "content": "12+34="}])
    assert rendered.text == "<|im_start|>user\n12+34=<|im_end|>\n<|im_start|>assistant\n"
    assert len(rendered.ids) == 14


def test_the_warm_start_asks_exactly_what_the_data_asks():
    tokenizer = character_tokenizer()
    task = addition.load(AdditionDataConfig(size=1, eval_size=0), seed=0).train[0]
    question = task["prompt"][0]["content"]
    a, b = (int(part) for part in question.rstrip("=").split("+"))
    made = tiny.transcripts([(a, b)], tokenizer)
    prompt = Renderer(tokenizer).render(task["prompt"]).ids.tolist()
    assert made.ids[0].tolist() == [*prompt, *tokenizer(task["answer"])["input_ids"], tokenizer.eos_token_id]
    assert made.target.tolist() == made.ids[0, len(prompt) :].tolist()
    assert made.answer[0].nonzero().flatten().tolist() == list(range(len(prompt) - 1, made.ids.shape[1] - 1))


def test_problem_and_careless_answer():
    assert addition_problem(12, 34) == ("12+34=", "46")
    assert [careless_answer(*pair) for pair in ((12, 34), (27, 48), (72, 61), (58, 67), (5, 95), (0, 0))] == ["46", "65", "33", "15", "90", "0"]


def test_no_held_out_task_is_seen_in_the_warm_start():
    training, validation = tiny.problems(2, seed=0)
    assert len(training) == tiny.TRAINING
    assert len(validation) == tiny.VALIDATION
    assert all(held_out_operands(*pair) for pair in validation)
    seen = {addition_problem(*pair)[0] for pair in training}
    for seed in range(3):
        held_out = addition.load(AdditionDataConfig(size=100, eval_size=256), seed=seed).held_out
        assert not seen & {task["prompt"][0]["content"] for task in held_out}


def test_greedy_accuracy_is_that_of_decoding():
    tokenizer = character_tokenizer()
    module = tiny.Qwen3ForCausalLM(tiny.architecture(TinyModelConfig(**SMALL), tokenizer)).double()
    operands = [(a, b) for a in range(10) for b in range(10)]
    right = tiny.batches(tiny.transcripts(operands, tokenizer), 0)
    tiny.supervised(module, tiny.together(right, None), tiny.transcripts(operands[:1], tokenizer), 1e-2, 50, 50, lambda accuracy: False)
    wanted = []
    for pair in operands[:40]:
        question, answer = addition_problem(*pair)
        ids = torch.tensor(Renderer(tokenizer).render([{"role": "user", "content": question}]).ids)[None]
        answered = module.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0, attention_mask=torch.ones_like(ids))[0, ids.shape[1] :]
        wanted.append(tokenizer.decode(answered, skip_special_tokens=True) == answer)
    assert 0 < sum(wanted) < 40
    assert tiny.greedy_accuracy(module, tiny.transcripts(operands[:40], tokenizer)) == pytest.approx(sum(wanted) / 40)


def test_the_model_is_made_once_and_is_the_same_whatever_the_global_state(cache, monkeypatch):
    monkeypatch.setattr(tiny, "SKILL_STEPS", 30)
    monkeypatch.setattr(tiny, "HABIT_STEPS", 5)
    threads = torch.get_num_threads()
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = tiny.load(TinyModelConfig(**SMALL), seed=0)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    weights = (folder / "model.safetensors").read_bytes()
    made = folder.stat().st_mtime_ns
    again = tiny.load(TinyModelConfig(**SMALL, dtype="float64"), seed=7)
    assert folder.stat().st_mtime_ns == made
    assert {parameter.dtype for parameter in again.module.parameters()} == {torch.float64}
    assert (first.eos_ids, first.context, first.label) == ((2,), 512, "tiny")
    torch.manual_seed(2)
    tiny.make(TinyModelConfig(**SMALL), cache)
    assert (cache / "model.safetensors").read_bytes() == weights
    tiny.load(TinyModelConfig(**SMALL, init_seed=5), seed=0)
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 2


def test_both_passes_end_where_they_are_told_to(cache, monkeypatch, caplog):
    caplog.set_level("INFO")
    accuracies = iter([0.5, 0.96, 0.7, 0.37])
    monkeypatch.setattr(tiny, "greedy_accuracy", lambda module, validation: next(accuracies))
    tiny.load(TinyModelConfig(**SMALL), seed=0)
    assert next(accuracies, None) is None
    assert f"{2 * tiny.SKILL_CHECK + 2 * tiny.HABIT_CHECK} steps" in caplog.text
    assert "accuracy 0.37" in caplog.text


def test_random_weights_and_sizes_that_do_not_fit(cache):
    loaded = tiny.load(TinyModelConfig(**SMALL, warm_start_accuracy=0), seed=0)
    assert loaded.module.lm_head.weight is not loaded.module.model.embed_tokens.weight
    with pytest.raises(UserError, match=r"model\.hidden_size=36 must be a multiple of 2 x model\.heads=4"):
        tiny.load(TinyModelConfig(hidden_size=36, heads=4), seed=0)


def test_two_at_once_make_a_cached_folder_once(cache):
    made, folders = [], []
    inside = threading.Barrier(2, timeout=5)

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "part").write_text("1")
        assert not place("thing", {"a": 1}).exists() or len(made) > 1, "visible before it is complete"
        (folder / "config.json").write_text("2")

    def want() -> None:
        inside.wait()
        folders.append(cached("thing", {"a": 1}, make))

    threads = [threading.Thread(target=want) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert folders[0] == folders[1]
    assert (folders[0] / "config.json").read_text() == "2"
    assert cached("thing", {"a": 2}, make) != folders[0]


def test_a_maker_that_dies_leaves_nothing_and_the_next_one_starts_anew(cache):
    def fail(folder: Path) -> None:
        (folder / "part").write_text("1")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        cached("thing", {}, fail)
    assert not list(cache.glob("thing-*/part"))
    (lock,) = cache.glob("*.lock")
    killed = lock.with_suffix(".half")
    killed.mkdir()
    assert (cached("thing", {}, lambda folder: (folder / "config.json").touch()) / "config.json").exists()
    assert not killed.exists()


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("RLEXP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "rlexp"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "rlexp"
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("RLEXP_CACHE", str(file))
    with pytest.raises(UserError, match=r"set the environment variable RLEXP_CACHE to a folder"):
        cached("thing", {}, lambda folder: None)


def test_the_default_model_adds_only_sometimes():
    """Made here if it is not in the user's cache yet, as the first `make train` does, in a process of its own."""
    code = "from rlexp.models import tiny; from rlexp.config.model import TinyModelConfig; tiny.load(TinyModelConfig(), seed=0)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=500, env={**os.environ, "OMP_NUM_THREADS": "1"})
    loaded = tiny.load(TinyModelConfig(), seed=0)
    assert 0.9e6 < sum(parameter.numel() for parameter in loaded.module.parameters()) < 1.1e6
    for seed in (0, 1):
        tasks = addition.load(AdditionDataConfig(size=1, eval_size=512), seed=seed).held_out
        operands = [tuple(int(part) for part in task["prompt"][0]["content"].rstrip("=").split("+")) for task in tasks]
        with torch.no_grad():
            assert 0.2 <= tiny.greedy_accuracy(loaded.module, tiny.transcripts(operands, loaded.tokenizer)) <= 0.5
