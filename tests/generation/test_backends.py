"""What native and transformers both promise."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from local_generators import generator_of, requests_of, teacher_forced
from models_for_tests import tiny_model
from table_model import table_model

from rlexp.generation.base import BadPrompt
from rlexp.models.loaded import LoadedModel
from rlexp.records.request import Request, Sampling
from rlexp.records.turn import EOS, LENGTH, STOP, Turn

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [20, 21, 22], [5, 6, 7, 8, 9, 10, 11], [30, 31, 32, 33, 34]]


@pytest.fixture(scope="module")
def tiny() -> LoadedModel:
    return tiny_model(dtype=torch.float32, spread=3.0)


def chain(steps: dict[int, int], vocab: int = 10) -> torch.Tensor:
    """A table that follows the steps given for sure; other ids go to 0."""
    table = torch.zeros(vocab, vocab)
    for i in range(vocab):
        table[i, steps.get(i, 0)] = 1.0
    return table


def sampled(turns: list[Turn]) -> list[list[int]]:
    return [turn.ids.tolist() for turn in turns]


@pytest.mark.rows("GRPO-183")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, 0.9, 20), Sampling(1.3, min_p=0.1)], ids=str)
def test_logprobs_are_those_of_a_plain_forward(backend: str, dtype: torch.dtype, sampling: Sampling) -> None:
    loaded = tiny_model(dtype=dtype, spread=2.0, eos_ids=tuple(range(12)))
    turns = generator_of(backend, loaded).sample_wave(requests_of(PROMPTS, 24, sampling, each=3))
    assert len({len(turn.ids) for turn in turns}) > 3  # ragged, so rows have left
    for turn in turns:
        assert turn.logprobs.dtype == np.float32
        np.testing.assert_allclose(turn.logprobs, teacher_forced(loaded.module, turn, sampling), atol=1e-5)


def test_both_backends_sample_the_same(tiny: LoadedModel) -> None:
    sampling = Sampling(0.9, 0.95, 40, 0.01, 1.2, stop=("a",), stop_ids=(50,))
    requests = requests_of(PROMPTS, 20, sampling, each=3)
    native, other = (generator_of(name, tiny).sample_wave(requests) for name in ("native", "transformers"))
    assert sampled(native) == sampled(other)
    for one, two in zip(native, other, strict=True):
        assert one.finish == two.finish
        np.testing.assert_allclose(one.logprobs, two.logprobs, atol=1e-5)
        assert one.candidates.ids.tolist() == two.candidates.ids.tolist() and one.candidates.offsets.tolist() == two.candidates.offsets.tolist()


@pytest.mark.cases("S24")
@pytest.mark.rows("GRPO-097")
def test_keys_decide_what_is_sampled(backend: str, tiny: LoadedModel) -> None:
    generator = generator_of(backend, tiny)
    one, again, other = (sampled(generator.sample_wave(requests_of(PROMPTS, 8, each=2, seed=seed))) for seed in (1, 1, 2))
    assert one == again
    assert all(a != b for a, b in zip(one, other, strict=True))
    assert len({tuple(ids) for ids in one}) == len(one)  # equal prompts and rollouts of one prompt differ too


def test_order_of_submission_does_not_matter(backend: str, tiny: LoadedModel) -> None:
    generator = generator_of(backend, tiny)
    requests = requests_of(PROMPTS, 12, each=3)
    straight = generator.sample_wave(requests)
    backwards = generator.sample_wave(requests[::-1])[::-1]
    assert sampled(straight) == sampled(backwards)
    assert all(np.array_equal(a.logprobs, b.logprobs) for a, b in zip(straight, backwards, strict=True))  # to the last bit


@pytest.mark.parametrize("small", [64, 100])
def test_splitting_a_wave_samples_the_same_ids(tiny: LoadedModel, small: int) -> None:
    requests = requests_of(PROMPTS, 12, each=3)
    whole = generator_of("native", tiny).sample_wave(requests)
    assert sampled(generator_of("native", tiny, max_wave_tokens=small).sample_wave(requests)) == sampled(whole)
    assert sampled(generator_of("transformers", tiny, batch_size=5).sample_wave(requests)) == sampled(whole)


def test_no_global_random_state_is_read_or_changed(backend: str, tiny: LoadedModel) -> None:
    generator, results = generator_of(backend, tiny), []
    for seed in (0, 987):
        torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
        before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
        results.append(generator.sample_wave(requests_of(PROMPTS, 10, Sampling(0.8, 0.9), each=2)))
        assert torch.equal(before[0], torch.get_rng_state())
        assert (before[1] == np.random.get_state()[1]).all() and before[2] == random.getstate()
    assert all(a.ids.tobytes() == b.ids.tobytes() and a.logprobs.tobytes() == b.logprobs.tobytes() for a, b in zip(*results, strict=True))


@pytest.mark.rows("GRPO-187")
def test_the_training_state_is_left_alone(backend: str) -> None:
    loaded = tiny_model(dtype=torch.float32)
    module = loaded.module.train()
    module.model.layers[0].mlp.eval()  # a part someone froze on purpose
    for layer in module.model.layers:
        layer.self_attn.attention_dropout = 0.5  # would change every log-prob if sampling ran in train mode
    module.lm_head.weight.grad = torch.ones_like(module.lm_head.weight)
    modes = [part.training for part in module.modules()]
    weights = {name: (value.dtype, value.requires_grad, value.detach().clone()) for name, value in module.named_parameters()}
    turns = generator_of(backend, loaded).sample_wave(requests_of(PROMPTS, 6))
    assert [part.training for part in module.modules()] == modes
    for name, value in module.named_parameters():
        assert (value.dtype, value.requires_grad) == weights[name][:2] and torch.equal(value, weights[name][2])
    assert (module.lm_head.weight.grad == 1).all() and torch.is_grad_enabled()
    module.eval()
    np.testing.assert_allclose(turns[0].logprobs, teacher_forced(module, turns[0], Sampling()), atol=1e-5)


def test_a_training_step_after_sampling_works_and_is_seen(backend: str) -> None:
    loaded = tiny_model(dtype=torch.float32)
    generator = generator_of(backend, loaded)
    first = generator.sample_wave(requests_of(PROMPTS[:1], 4))[0]
    loaded.module(torch.tensor([PROMPTS[0]])).logits.square().sum().backward()
    with torch.no_grad():
        for value in loaded.module.parameters():
            value -= 0.05 * value.grad.sign()
    generator.set_version(3)
    second = generator.sample_wave(requests_of(PROMPTS[:1], 4))[0]
    assert (first.version, second.version) == (0, 3)
    np.testing.assert_allclose(second.logprobs, teacher_forced(loaded.module, second, Sampling()), atol=1e-5)
    assert abs(first.logprobs[0] - second.logprobs[0]) > 1e-3 or first.ids[0] != second.ids[0]


@pytest.mark.cases("S18")
@pytest.mark.rows("GRPO-046")
def test_every_eos_id_ends_a_completion(backend: str) -> None:
    loaded = table_model(chain({1: 4, 4: 5, 5: 7, 2: 9, 3: 6, 6: 8, 8: 8}), eos_ids=(7, 9))
    turns = generator_of(backend, loaded).sample_wave(requests_of([[1], [2], [3]], 3))
    assert sampled(turns) == [[4, 5, 7], [9], [6, 8, 8]]
    assert [turn.finish for turn in turns] == [EOS, EOS, LENGTH]


@pytest.mark.cases("S19")
def test_pad_equal_to_eos_and_an_answer_that_is_only_eos(backend: str) -> None:
    loaded = table_model(chain({1: 4, 4: 5, 5: 0, 2: 0}), eos_ids=(0,))
    assert loaded.tokenizer.pad_token_id == 0
    turns = generator_of(backend, loaded).sample_wave(requests_of([[3, 0, 1], [2]], 8))  # the pad id stands in a prompt too
    assert sampled(turns) == [[4, 5, 0], [0]]
    assert [turn.finish for turn in turns] == [EOS, EOS]


@pytest.mark.cases("S20")
@pytest.mark.rows("GRPO-082")
def test_stop_strings_end_inside_and_across_tokens(backend: str) -> None:
    words = ["<pad>", "<answer>", "5", "</ans", "wer>", "z", "</answer>!"]
    loaded = table_model(chain({5: 1, 1: 2, 2: 3, 3: 4, 4: 1, 6: 6}, 7), words=words)
    sampling = Sampling(stop=("never", "</answer>"))
    across, inside = generator_of(backend, loaded).sample_wave(requests_of([[5], [5, 6]], 16, sampling))
    assert (across.ids.tolist(), across.finish) == ([1, 2, 3, 4], STOP)
    assert loaded.tokenizer.decode(across.ids) == "<answer>5</answer>"
    assert (inside.ids.tolist(), inside.finish) == ([6], STOP)  # the prompt's own tag did not end it before the first token


def test_a_stop_string_may_begin_with_special_tokens_or_be_one(backend: str) -> None:
    words = ["<pad>", "<end>", "b", "c"]
    loaded = table_model(chain({2: 3, 3: 1, 1: 2}, 4), words=words, special=(1,))
    turn = generator_of(backend, loaded).sample_wave(requests_of([[2]], 9, Sampling(stop=("<end>",))))[0]
    assert (turn.ids.tolist(), turn.finish) == ([3, 1], STOP)


def test_stop_ids_and_priorities(backend: str) -> None:
    loaded = table_model(chain({1: 2, 2: 3, 3: 4, 4: 5, 5: 5}), eos_ids=(4,))
    wave = [*requests_of([[1]], 2, Sampling(stop_ids=(3,))), *requests_of([[1]], 3, Sampling(stop_ids=(4,))), *requests_of([[1]], 3, Sampling(stop=("e",)))]
    turns = generator_of(backend, loaded).sample_wave(wave)
    assert sampled(turns) == [[2, 3], [2, 3, 4], [2, 3, 4]]
    assert [turn.finish for turn in turns] == [STOP, EOS, EOS]  # stop beats length, EOS beats stop


@pytest.mark.cases("S25")
def test_greedy_twice_gives_the_same_text(backend: str, tiny: LoadedModel) -> None:
    generator = generator_of(backend, tiny)
    one, two = (generator.sample_wave(requests_of(PROMPTS, 10, Sampling(temperature=0.0), seed=seed)) for seed in (1, 2))
    assert sampled(one) == sampled(two)
    with torch.no_grad():
        for turn in one:
            logits = tiny.module(torch.tensor([[*turn.prompt_ids, *turn.ids]])).logits[0, len(turn.prompt_ids) - 1 : -1]
            assert logits.argmax(-1).tolist() == turn.ids.tolist()


@pytest.mark.cases("S26")
@pytest.mark.rows("GRPO-077", "GRPO-079")
def test_a_model_folder_smuggles_in_no_sampling_settings(backend: str) -> None:
    loaded = table_model([1 / 8] * 8, eos_ids=(0, 5))
    smuggled = {"temperature": 0.1, "top_k": 1, "top_p": 0.5, "repetition_penalty": 1.3, "min_new_tokens": 2, "suppress_tokens": [3]}
    for name, value in smuggled.items():
        setattr(loaded.module.generation_config, name, value)
    own = loaded.module.generation_config
    turns = generator_of(backend, loaded).sample_wave(requests_of([[1]], 1, each=400))
    assert {int(turn.ids[0]) for turn in turns} == set(range(8))
    assert {turn.finish for turn in turns if turn.ids[0] in (0, 5)} == {EOS} and {turn.finish for turn in turns if turn.ids[0] not in (0, 5)} == {LENGTH}
    assert loaded.module.generation_config is own and own.top_k == 1
    np.testing.assert_allclose([turn.logprobs[0] for turn in turns], np.log(1 / 8), atol=1e-6)


@pytest.mark.cases("S46")
def test_the_context_limits_what_is_sampled(backend: str) -> None:
    loaded = table_model(chain({1: 2, 2: 3, 3: 4, 6: 7, 7: 9}), eos_ids=(9,), context=32)
    generator = generator_of(backend, loaded)
    cut, ended = generator.sample_wave(requests_of([[0] * 29 + [1], [0] * 29 + [6]], 8))
    assert (cut.ids.tolist(), cut.finish) == ([2, 3], LENGTH)
    assert (ended.ids.tolist(), ended.finish) == ([7, 9], EOS)
    for length in (40, 32):
        with pytest.raises(BadPrompt, match=f"{length} tokens.*context is 32"):
            generator.sample_wave(requests_of([[1] * length], 8))


def test_learned_positions_never_leave_the_context(backend: str) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=1, n_head=1, bos_token_id=None, eos_token_id=None)
    loaded = LoadedModel(GPT2LMHeadModel(config).eval(), table_model([1 / 20] * 20).tokenizer, (), 16, "gpt2")
    turns = generator_of(backend, loaded).sample_wave(requests_of([[3] * 14] + [[4] * 2] * 30, 12))  # one row ends early and may stay in the batch
    assert [len(turn.ids) for turn in turns] == [2] + [12] * 30
    for turn in turns:
        np.testing.assert_allclose(turn.logprobs, teacher_forced(loaded.module, turn, Sampling()), atol=1e-5)


@pytest.mark.rows("GRPO-081")
def test_the_repetition_penalty_counts_prompt_and_completion(backend: str) -> None:
    loaded = table_model([1 / 6] * 6)
    turns = generator_of(backend, loaded).sample_wave(requests_of([[2], [4, 4, 2]], 4, Sampling(repetition_penalty=1e6), each=5))
    for turn in turns[:5]:  # log-probs are negative, so that a seen token becomes impossible: no token comes twice
        assert len({2, *turn.ids.tolist()}) == 5
        np.testing.assert_allclose(turn.logprobs, np.log([1 / 5, 1 / 4, 1 / 3, 1 / 2]), atol=1e-6)
    for turn in turns[5:]:
        assert {*turn.ids[:4].tolist()} == {0, 1, 3, 5}


def test_policies_and_samplings_of_one_wave_stay_apart(backend: str) -> None:
    first, second = table_model(chain({1: 4})), table_model([1 / 10] * 10)
    generator = generator_of(backend, {"first": first, "second": second})
    wave = [
        Request(np.array([1]), 1, 1, Sampling(), "first", (1,)),
        Request(np.array([1]), 2, 1, Sampling(top_k=3), "second", (0,)),
        Request(np.array([1]), 3, 1, Sampling(), "second", (2,)),
    ]
    turns = generator.sample_wave(wave)
    assert turns[0].ids.tolist() == [4] and turns[0].logprobs[0] == pytest.approx(0.0, abs=1e-6)
    assert turns[1].candidates is not None and turns[2].candidates is None
    assert turns[2].logprobs[0] == pytest.approx(np.log(0.1), abs=1e-6)


def test_an_adapter_takes_part(backend: str) -> None:
    from peft import LoraConfig, get_peft_model

    loaded = tiny_model(dtype=torch.float32)
    plain = generator_of(backend, loaded).sample_wave(requests_of(PROMPTS[:1], 5))[0]
    torch.manual_seed(0)
    module = get_peft_model(loaded.module, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False)).eval()
    adapted = LoadedModel(module, loaded.tokenizer, loaded.eos_ids, loaded.context, "lora")
    turn = generator_of(backend, adapted).sample_wave(requests_of(PROMPTS[:1], 5))[0]
    np.testing.assert_allclose(turn.logprobs, teacher_forced(module, turn, Sampling()), atol=1e-5)
    assert not np.allclose(turn.logprobs, plain.logprobs, atol=1e-3)


def test_an_empty_prompt_is_refused(backend: str, tiny: LoadedModel) -> None:
    with pytest.raises(BadPrompt, match="no tokens"):
        generator_of(backend, tiny).sample_wave(requests_of([[]], 3))
