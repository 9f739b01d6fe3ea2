"""Write docs/config_reference.md; with --check, exit 1 and show the difference when it is out of date."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from rlexp.components import register_all
from rlexp.config.reference import reference_text

PAGE = Path(__file__).resolve().parent.parent / "docs" / "config_reference.md"


def main() -> int:
    """Exit code 0, or 1 when --check finds the page out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    register_all()
    text = reference_text()
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    difference = "\n".join(difflib.unified_diff(old.splitlines(), text.splitlines(), "docs/config_reference.md", "generated", lineterm=""))
    if difference:
        print(f"{difference}\nrun: python scripts/config_reference.py", file=sys.stderr)
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
