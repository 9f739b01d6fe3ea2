"""The inputs that both sides read: a model folder (with the EOS ids in its generation config), prompts, and an adapter for LoRA."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from scripts.bench.workloads import MEAN_SHARE, THREADS, Workload

VERSION = 2
"""raise it when anything below changes the result: part of the folder's name"""
BATCHES = 64
"""whose prompts are written; after them the prompts come again"""
SEED = 7
CANDIDATES = 8
"""an id must have come so often among the completions the list is sized on: the share of rare ids is not known"""
SENTENCES = (
    "The river rises in the hills north of the town and reaches the sea after two hundred miles.",
    "A train leaves the station at nine in the morning and arrives a little before noon.",
    "She wrote the first chapter in a week and needed two years for the rest of the book.",
    "Most of the houses in the old street were built of brick, with roofs of grey slate.",
    "If every worker lays forty stones a day, how long will the wall take them to finish?",
    "The committee met on Tuesday, heard three reports and decided to wait for the fourth.",
    "Water boils at a lower temperature on a mountain, which is why beans cook slowly there.",
    "He counted the coins twice, put nine of them aside and gave the others to his sister.",
    "In spring the market sells lettuce and radishes; in autumn it sells apples and squash.",
    "The program reads a file, sorts its lines by their length and prints the longest ten.",
    "Nobody knew why the clock in the tower had stopped, nor who had wound it before.",
    "A square garden has a path around it that is two metres wide and made of gravel.",
    "The museum keeps its oldest maps in a dark room, because light fades their colours.",
    "They planted twelve rows of trees with fifteen trees in each, and lost eleven to frost.",
)


def main(pipe: Connection, workload: Workload, root: Path) -> None:
    """A process of its own: prepares the inputs, unless they are there, and sends their folder."""
    torch.set_num_threads(THREADS)
    digest = hashlib.blake2b(json.dumps({**workload.inputs, "version": VERSION}, sort_keys=True).encode(), digest_size=6).hexdigest()
    folder = root / f"inputs-{digest}"
    if not (folder / "about.json").exists():
        prepare(workload, folder)
    pipe.send((folder, json.loads((folder / "about.json").read_text())))


def prepare(workload: Workload, folder: Path) -> None:
    """Fill a folder: model/, prompts.jsonl, adapter/ when there is LoRA, and about.json last."""
    folder.mkdir(parents=True, exist_ok=True)
    module, tokenizer = random_model(workload) if workload.model == "random" else pretrained(workload.model)
    prompts = prompt_texts(workload, tokenizer)
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    target = MEAN_SHARE * workload.max_new
    if workload.model == "random":
        eos_ids = uniform_eos(workload.vocabulary, workload.max_new, target, keep=tokenizer.eos_token_id)
    else:
        completions = sample(module, tokenizer, prompts[: workload.prompts], workload)
        eos_ids = sized_eos(completions, target, keep=tokenizer.eos_token_id, forbidden=tokenizer.pad_token_id)
    module.generation_config = GenerationConfig(eos_token_id=eos_ids, pad_token_id=tokenizer.pad_token_id)
    module.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    if workload.lora_rank:
        save_adapter(module, workload, folder / "adapter")
    total = sum(parameter.numel() for parameter in module.parameters())
    embeddings = {id(part.weight): part.weight.numel() for part in (module.get_input_embeddings(), module.get_output_embeddings())}
    config = module.config
    about = {
        "parameters": total,
        "non_embedding": total - sum(embeddings.values()),
        "layers": config.num_hidden_layers,
        "attention_width": config.num_attention_heads * (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads),
        "hidden": config.hidden_size,
        "vocabulary": config.vocab_size,
        "eos_ids": len(eos_ids),
        "prompt_tokens": [len(ids) for ids in tokenizer(prompts[: workload.prompts])["input_ids"]],
    }
    (folder / "about.json").write_text(json.dumps(about))


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One token for each of the words w2, w3, ...; two special tokens before them."""
    words = {word: index for index, word in enumerate(["<pad>", "<end>", *(f"w{number}" for number in range(2, vocabulary))])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix="##")
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<end>", padding_side="left", clean_up_tokenization_spaces=False)


def random_model(workload: Workload) -> tuple[Any, Any]:
    """A Qwen3-type network with untied embeddings and random weights."""
    tokenizer = word_tokenizer(workload.vocabulary)
    config = Qwen3Config(
        vocab_size=workload.vocabulary,
        hidden_size=workload.hidden,
        intermediate_size=2 * workload.hidden,
        num_hidden_layers=workload.layers,
        num_attention_heads=workload.heads,
        num_key_value_heads=workload.heads,
        head_dim=workload.hidden // workload.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(SEED)
    return Qwen3ForCausalLM(config).eval(), tokenizer


def pretrained(option: str) -> tuple[Any, Any]:
    """The model of one of rlexp's options that need no hub."""
    from rlexp.components import register_all
    from rlexp.registry import MODELS

    register_all()
    loaded = MODELS.load(option)(MODELS.config_for(option)(), seed=SEED)
    folder = loaded.module.name_or_path
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder, padding_side="left")


def prompt_texts(workload: Workload, tokenizer: Any) -> list[str]:
    """Prompts of BATCHES batches, all different: random words of exactly prompt_tokens, or English sentences of about as many."""
    draw = random.Random(SEED)
    made = []
    for _ in range(BATCHES * workload.prompts):
        if workload.model == "random":
            made.append(" ".join(f"w{draw.randrange(2, workload.vocabulary)}" for _ in range(workload.prompt_tokens)))
            continue
        text = ""
        while len(tokenizer(text)["input_ids"]) < workload.prompt_tokens:
            text = f"{text} {draw.choice(SENTENCES)}".strip()
        made.append(text)
    return made


@torch.no_grad()
def sample(module: Any, tokenizer: Any, prompts: list[str], workload: Workload) -> list[list[int]]:
    """Completions of the longest length that no id ends."""
    given = tokenizer(prompts, return_tensors="pt", padding=True)
    torch.manual_seed(SEED)
    settings = GenerationConfig(
        do_sample=True,
        top_k=0,
        max_new_tokens=workload.max_new,
        num_return_sequences=workload.generations,
        pad_token_id=tokenizer.pad_token_id,
        disable_compile=True,
    )
    module.generation_config = settings
    out = module.generate(input_ids=given["input_ids"], attention_mask=given["attention_mask"])
    return out[:, given["input_ids"].shape[1] :].tolist()


def uniform_eos(vocabulary: int, longest: int, target: float, keep: int) -> list[int]:
    """As many ids as end completions after `target` tokens on average, when every token is as likely as every other.

    A random network is close to that. With chance p of an end at each token the mean of min(length, longest) is (1 - (1 - p)^longest) / p.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        chance = (low + high) / 2
        if (1 - (1 - chance) ** longest) / chance > target:
            low = chance
        else:
            high = chance
    others = [token for token in range(2, vocabulary) if token != keep]
    return sorted([keep, *random.Random(SEED).sample(others, max(round(low * vocabulary) - 1, 0))])


def sized_eos(completions: list[list[int]], target: float, keep: int, forbidden: int | None = None) -> list[int]:
    """Ids that end completions so that their mean length is about `target`. keep: is among them, whatever it does.

    Which id ends a completion does not change what is sampled before it, so the list can be chosen on completions that nothing
    ended: ids are added in a random order for as long as that brings the mean closer.
    """
    counts = Counter(token for ids in completions for token in ids)
    candidates = sorted(token for token, count in counts.items() if count >= CANDIDATES and token not in (keep, forbidden))
    random.Random(SEED).shuffle(candidates)
    chosen = [keep]
    distance = abs(mean_length(completions, {keep}) - target)
    for token in candidates:
        tried = abs(mean_length(completions, {*chosen, token}) - target)
        if tried < distance:
            chosen.append(token)
            distance = tried
    return sorted(chosen)


def mean_length(completions: list[list[int]], eos_ids: set[int]) -> float:
    """Mean length up to the first of these ids, which counts."""
    ends = [next((place + 1 for place, token in enumerate(ids) if token in eos_ids), len(ids)) for ids in completions]
    return sum(ends) / len(ends)


def save_adapter(module: Any, workload: Workload, folder: Path) -> None:
    """An adapter on every linear layer with random weights, B too: with B = 0 the gradient of A would be zero."""
    import peft

    torch.manual_seed(SEED)
    settings = peft.LoraConfig(
        r=workload.lora_rank, lora_alpha=2 * workload.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
    )
    wrapped = peft.get_peft_model(module, settings)
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            parameter.data.mul_(0.01)
    wrapped.save_pretrained(str(folder))
