"""What the pages name exists: keys, options, files, links; and the page about metrics lists what a run logs."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from doc_pages import GENERATED, PAGES, ROOT, blocks, code_spans, prose
from programs import Programs

from rlexp.components import register_all
from rlexp.registry import REGISTRIES, conf_dir

OWN = {"loss.pull", "loss=mine", "checkpoint=step_000050", "checkpoint=best"}
"""of the plugin that docs/extending.md shows, and the argument of rlexp.evaluate that is called like a group"""
FILES = (".py", ".md", ".yaml", ".json", ".jsonl", ".log", ".html", ".run")
"""endings of words that look like a key but are a file, or `build.run`"""


@cache
def known_keys() -> frozenset[str]:
    """Every key there is, from the generated reference."""
    return frozenset(re.findall(r"^\| `([a-z_.<>0-9]+)` \|", GENERATED.read_text(encoding="utf-8"), re.MULTILINE))


@cache
def groups() -> frozenset[str]:
    """The first parts of keys."""
    return frozenset(key.split(".")[0] for key in known_keys())


@cache
def options() -> dict[str, frozenset[str]]:
    """Group -> its options: registered ones and files."""
    register_all()
    names = {group: set(registry.names()) for group, registry in REGISTRIES.items()}
    for path in conf_dir().glob("*/*.yaml"):
        names.setdefault(path.parent.name, set()).add(path.stem)
    return {group: frozenset(found) for group, found in names.items()}


def key_exists(key: str) -> bool:
    """Whether a key exists; a term's own name in reward.terms.NAME.weight is free."""
    if key in known_keys() or key in OWN or any(known.startswith(f"{key}.") for known in known_keys()):
        return True
    match = re.fullmatch(r"(reward|tracker)\.terms\.([\w<>]+)(?:\.(\w+))?", key)
    return bool(match) and (match[3] is None or any(known.startswith(f"{match[1]}.terms.") and known.endswith(f".{match[3]}") for known in known_keys()))


def words_of(page: Path) -> list[str]:
    """Words of the code spans, quotes left out."""
    return [word.strip("'\"").lstrip("+") for span in code_spans(page) for word in span.split()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_keys_exist(page: Path) -> None:
    for word in words_of(page):
        key = word.partition("=")[0]
        if re.fullmatch(r"[a-z_]+(\.[a-z_<>0-9A-Z]+)+", key) and key.split(".")[0] in groups() and Path(key).suffix not in FILES:
            assert key_exists(key), f"{page.name}: `{word}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_exist(page: Path) -> None:
    for word in words_of(page):
        match = re.fullmatch(r"([a-z_]+)=\[?([a-z0-9_,]+)\]?", word)
        if match and match[1] in options() and word not in OWN:
            assert set(match[2].split(",")) <= options()[match[1]], f"{page.name}: `{word}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_exist(page: Path) -> None:
    """Paths of this repository in backticks: rlexp/..., conf/..., docs/..., scripts/..., tests/..."""
    for word in words_of(page):
        path = re.split(r"[:,;)]", word)[0]
        if re.match(r"(rlexp|conf|docs|scripts|tests|hydra_plugins)/[\w/.]*$", path) and path != "conf/local/default.yaml":
            assert (ROOT / path).exists(), f"{page.name}: `{word}`"


def anchors(page: Path) -> set[str]:
    """Names of the headings of a page as a link uses them."""
    heads = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.stem)
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {target}"


def test_files_shown_are_those_of_the_tested_plugin() -> None:
    """docs/extending.md shows the package that tests/plugin installs."""
    shown = {block.marks["file"]: block.text for block in blocks(ROOT / "docs" / "extending.md") if block.marks.get("file", "").startswith("rlx_extra/")}
    assert shown and all(text == (ROOT / "tests" / "plugin" / name).read_text(encoding="utf-8") for name, text in shown.items())


def documented_metrics() -> dict[str, str]:
    """Name -> when it is logged, from the tables of docs/metrics.md."""
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \|", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE)
    return dict(rows)


REWARD = """
def length(completions, log_metric):
    log_metric("mine", 1.0)
    return [float(len(messages[0]["content"])) for messages in completions]
"""


def test_the_metrics_page_lists_what_a_run_logs(programs: Programs, tmp_path: Path) -> None:
    """One run with everything on that adds metrics: a reference, pass@k, several passes, a lenient reward."""
    (tmp_path / "rewards.py").write_text(REWARD)
    base = ["experiment=none", "model=tiny", "model.warm_start_accuracy=0", "data.size=8", "data.eval_size=2", "rollout.prompts_per_batch=2"]
    base += ["rollout.max_completion_length=6", "trainer.max_steps=3", "run.name=r", "reward=custom", "reward.terms.custom.path=rewards.py:length"]
    more = ["algorithm.beta=0.1", "algorithm.num_iterations=2", "evaluation.num_generations=2", "reward.on_error=none"]
    done = programs.train(*base, *more, cwd=tmp_path, env={"RLEXP_OUTPUTS": str(tmp_path), "RLEXP_CACHE": str(tmp_path / "cache")})
    assert done.code == 0, done.err
    logged: dict[str, set[str]] = {"train": set(), "eval": set()}
    for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines():
        found = json.loads(line)
        logged[found["split"]] |= found.keys()
    documented = documented_metrics()
    names = {re.sub(r"rewards/custom/", "rewards/<term>/", re.sub(r"^pass@\d+$", "pass@<k>", name)): name for name in logged["train"] | logged["eval"]}
    assert {name for name in names if name not in documented} == {"mine"}
    always = {name for name, when in documented.items() if when in ("train", "eval", "both")}
    assert always - names.keys() == set(), "documented as always there, but not logged"
    for name, when in documented.items():
        if name in names and when != "sometimes":
            splits = {split for split in logged if names[name] in logged[split]}
            assert splits == ({"train", "eval"} if when == "both" else {when}), name
