"""Group `data`: the tasks, and the held-out tasks for evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from rlexp.config.fields import REQUIRED, option


@dataclass
class DataConfig:
    """What every data option has. A task is a dict with `prompt` (text or messages) and the columns that rewards need."""

    name: str = option(REQUIRED, "The data option")
    seed: Optional[int] = option(None, "Seed of task generation and order; null: run.seed", ge=0)
    shuffle: bool = option(True, "Shuffle the training tasks, anew each epoch")
    eval_size: int = option(64, "Held-out tasks for evaluation; 0: none", ge=0)
    system_prompt: Optional[str] = option(None, "System message put before every prompt (conversational prompts)")
    overlong_prompt: str = option(
        "error",
        "A prompt longer than the model's context or data.max_prompt_length: refuse it at start, leave the task out, or keep the last tokens",
        choices=("error", "drop", "cut_left"),
    )
    max_prompt_length: Optional[int] = option(None, "Longest prompt in tokens; null: what the context leaves", ge=1)


@dataclass
class AdditionDataConfig(DataConfig):
    """Procedural addition: `12+34=` with the sum as answer; train and held-out tasks are disjoint."""

    name: str = "addition"
    digits: int = option(2, "Most digits of each operand", ge=1, le=6)
    size: int = option(2000, "Training tasks", ge=1)
    conversational: bool = option(True, "Prompts as messages (rendered by the chat template) instead of plain text")


@dataclass
class ReasoningGymDataConfig(DataConfig):
    """Any procedural dataset of the reasoning-gym package, with its own scorer (`reward=reasoning_gym`)."""

    name: str = "reasoning_gym"
    dataset: str = option("basic_arithmetic", "Name of the dataset in reasoning-gym")
    params: Dict[str, Any] = option({}, "Its parameters, e.g. data.params='{min_digits: 1, max_digits: 2}'")
    size: int = option(2000, "Training tasks", ge=1)
    suffix: str = option("", "Text put after each question, e.g. how to format the answer")
    conversational: bool = option(True, "Prompts as messages (rendered by the chat template) instead of plain text")


@dataclass
class TabularDataConfig(DataConfig):
    """What data from files and from the hub share."""

    prompt_column: str = option("prompt", "Column that holds the prompt (text or a list of messages)")
    columns: Dict[str, str] = option({}, "New names of columns for the rewards, as {new: old}")
    conversational: bool = option(False, "Wrap a text prompt as one user message")
    prompt_template: Optional[str] = option(None, "Text with {column} places that makes the prompt from the row")
    size: Optional[int] = option(None, "Use only the first training tasks; null: all", ge=1)
    eval_path: Optional[str] = option(None, "File with the held-out tasks; null: eval_split, or eval_size tasks split off")


@dataclass
class FilesDataConfig(TabularDataConfig):
    """Local files: jsonl, json, csv or parquet."""

    name: str = "files"
    path: str = option(REQUIRED, "File, folder or glob, e.g. data.path=tasks.jsonl")


@dataclass
class HubDataConfig(TabularDataConfig):
    """Any dataset the `datasets` library can load: a hub name or a local folder."""

    name: str = "hub"
    path: str = option(REQUIRED, "Dataset name or folder, e.g. data.path=openai/gsm8k")
    config: Optional[str] = option(None, "Configuration (subset) of the dataset")
    split: str = option("train", "Split to train on")
    eval_split: Optional[str] = option(None, "Split of the held-out tasks; null: eval_size tasks of split")
    streaming: bool = option(False, "Read the dataset as a stream (needs trainer.max_steps)")
    shuffle_buffer: int = option(1000, "Tasks in the shuffle buffer of a stream", ge=1)
    answer_pattern: Optional[str] = option(None, "Regular expression whose first group is cut out of the answer column")
    answer_column: str = option("answer", "Column the pattern applies to")
    data_files: List[str] = option([], "Files inside the dataset; empty: its default")
