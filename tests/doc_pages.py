"""README and docs/*.md as tests read them: code blocks with their marks, names in backticks, links.

A block's info string is its language and marks: `no-run: REASON` (to the end of the line), `file=PATH` (the block is that file, written before the
page's commands run), `exit=N` (how its last command ends). In a shell block each line with `$ ` is a command (a backslash continues it on the next line),
and the lines after it are lines of its output, in order; `...` stands for anything.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "docs" / "config_reference.md"
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path != GENERATED)]


@dataclass
class Block:
    """A fenced block."""

    language: str
    marks: dict[str, str]
    lines: list[str]
    line: int
    """number of its first line in the page"""

    @property
    def text(self) -> str:
        """Its contents."""
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def is_shell(self) -> bool:
        """Whether it shows commands."""
        return bool(self.lines) and self.lines[0].startswith("$")

    def commands(self) -> list[tuple[str, list[str]]]:
        """(command, lines of output shown) of a shell block."""
        found: list[tuple[str, list[str]]] = []
        continued = False
        for line in self.lines:
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif continued:
                found[-1] = (found[-1][0] + "\n" + line, found[-1][1])
            else:
                found[-1][1].append(line)
            continued = line.endswith("\\") and (line.startswith("$ ") or continued)
        return found


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    made: list[Block] = []
    inside = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            if inside:
                made[-1].lines.append(line)
            continue
        if not inside:
            info, _, reason = line[3:].partition("no-run:")
            language, *words = info.split() or [""]
            marks = dict(word.split("=", 1) for word in words)
            made.append(Block(language, marks | ({"no-run": reason.strip()} if "no-run:" in line else {}), [], number + 1))
        inside = not inside
    assert not inside, f"{page.name}: a block is not closed"
    return made


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def code_spans(page: Path) -> list[str]:
    """What stands in backticks outside of blocks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))


def matches(shown: list[str], output: str) -> str | None:
    """The first shown line that does not occur in the output after the one before it; None when all do."""
    left = [line.rstrip() for line in output.splitlines()]
    for line in (line.rstrip() for line in shown):
        if line in ("", "..."):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in line.split("...")))
        place = next((i for i, candidate in enumerate(left) if pattern.fullmatch(candidate)), None)
        if place is None:
            return line
        left = left[place + 1 :]
    return None


def overrides_of(command: str) -> list[str] | None:
    """The overrides of a command that trains, None for another one; of a sweep, those of its first job (all options of a glob compose elsewhere)."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words[:3] == ["python", "-m", "rlexp.train"]:
        words = words[3:]
    elif words[:1] == ["rlexp-train"]:
        words = words[1:]
    else:
        return None
    return [first_choice(word) for word in words if word != "-m" and "=glob(" not in word] if "-m" in words else words


def first_choice(word: str) -> str:
    """The first value of an axis: loss=dapo,grpo -> loss=dapo."""
    key, _, value = word.partition("=")
    return f"{key}={value.split(',')[0]}" if "[" not in value and "{" not in value else word
