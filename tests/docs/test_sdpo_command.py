"""The command that docs/from_trl.md gives for the worked run of TRL's page about SDPO, as it is written, with stand-ins for what a hub would give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doc_pages import ROOT, blocks, overrides_of
from programs import Programs
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlexp.models.tokenizer import character_tokenizer

CARD = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: train.jsonl
---
"""


def command() -> list[str]:
    """Its overrides."""
    shown = [line for block in blocks(ROOT / "docs" / "from_trl.md") if block.is_shell for line, _ in block.commands() if "algorithm=sdpo" in line]
    assert len(shown) == 1
    words = overrides_of(shown[0])
    assert words is not None
    return words


def stand_ins(folder: Path) -> None:
    """A model and a dataset under the names that the command gives; a local folder goes before the hub."""
    tokenizer = character_tokenizer(512)
    model = folder / "Qwen" / "Qwen2.5-Math-1.5B-Instruct"
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "pad_token_id": tokenizer.pad_token_id}
    Qwen2ForCausalLM(Qwen2Config(num_key_value_heads=1, max_position_embeddings=512, **sizes, **ids)).save_pretrained(model)
    tokenizer.save_pretrained(model)
    data = folder / "openai" / "gsm8k"
    data.mkdir(parents=True)
    (data / "README.md").write_text(CARD)
    rows = [{"question": f"Ann has {n} pens and buys one.", "answer": f"{n} + 1\n#### {n + 1}", "hint": f"Add one to {n}."} for n in range(80)]
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.rows("SDPO-061", "SDPO-066", "SDPO-067", "SDPO-118")
def test_it_runs(programs: Programs, tmp_path: Path) -> None:
    """A whole generation batch of 32 completions makes 16 optimizer steps, in which teachers have read the hints."""
    stand_ins(tmp_path)
    done = programs.train(*command(), "trainer.max_steps=16", "data.eval_size=2", "run.name=r", cwd=tmp_path, env={"RLEXP_OUTPUTS": str(tmp_path)})
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["split"] == "train"]
    assert len(train) == 16 and train[0]["num_tokens"] == train[-1]["num_tokens"]  # sampled once
    assert train[0]["self_distillation/feedback_used_fraction"] == 1.0
    assert all(line["self_distillation/distillation_loss"] != 0 for line in train)
    assert (tmp_path / "r" / "model" / "adapter_config.json").is_file() and not list((tmp_path / "r").glob("checkpoints/step_*"))
