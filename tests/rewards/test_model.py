"""reward=model: the first logit of a sequence classifier on prompt and completion."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models_for_tests import classifier_folder, tiny_model

from rlexp.config.errors import UserError
from rlexp.config.reward import ModelRewardConfig
from rlexp.rewards.model import ModelScore


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier_folder(tmp_path_factory.mktemp("reward_model"))


@pytest.mark.rows("GRPO-112", "GRPO-113", "GRPO-114", "GRPO-125")
def test_it_scores_each_text_as_the_model_alone_does(folder: Path) -> None:
    reward = ModelScore(ModelRewardConfig(path=str(folder), batch_size=2))
    prompts = [[{"role": "user", "content": text}] for text in ("1+1=", "12+34=", "5+5=")]
    completions = [[{"role": "assistant", "content": text}] for text in ("2", "a longer answer", "10")]
    found = reward(prompts, completions)
    module, tokenizer = reward.module, reward.tokenizer
    for prompt, completion, score in zip(prompts, completions, found, strict=True):
        text = tokenizer.apply_chat_template([*prompt, *completion], tokenize=False)
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        assert score == pytest.approx(module(input_ids=ids).logits[0, 0].item(), abs=1e-5)
    assert len(set(found)) == 3
    plain = reward(["1+1="], ["2"])
    assert plain != found[:1] and not module.training


@pytest.mark.rows("GRPO-268")
def test_what_is_no_reward_model_is_refused(folder: Path, tmp_path: Path) -> None:
    loaded = tiny_model()
    loaded.module.save_pretrained(tmp_path / "causal")
    with pytest.raises(UserError, match=r"no reward model: it holds Qwen3ForCausalLM"):
        ModelScore(ModelRewardConfig(path=str(tmp_path / "causal")))
    with pytest.raises(UserError, match=r"cannot be loaded.*reward=model"):
        ModelScore(ModelRewardConfig(path=str(tmp_path / "nothing")))
