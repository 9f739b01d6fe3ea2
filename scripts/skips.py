"""Fail on a skipped test that is not allowed: python scripts/skips.py REPORT.xml... ALLOWED.txt [--totals]

ALLOWED.txt has a line `tests/file.py::name  reason` for each test that may be skipped.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def main() -> int:
    """Print skipped tests that are not allowed; exit code 1 when there are any."""
    *reports, allowed_file = [argument for argument in sys.argv[1:] if argument != "--totals"]
    cases = [case for report in reports for case in ElementTree.parse(report).iter("testcase")]
    skipped = [case for case in cases if case.find("skipped") is not None]
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    if "--totals" in sys.argv:
        print(f"{len(cases) - len(skipped) - len(failed)} passed, {len(failed)} failed, {len(skipped)} skipped")
        return 0
    lines = [line.split(maxsplit=1) for line in Path(allowed_file).read_text().splitlines() if line.strip() and not line.startswith("#")]
    allowed = {line[0] for line in lines if len(line) == 2}
    wrong = 0
    for case in skipped:
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        if name not in allowed:
            reason = case.find("skipped")
            print(f"skipped and not allowed: {name}: {'' if reason is None else reason.get('message')}")
            wrong += 1
    print(f"{len(skipped)} skipped, {wrong} of them not allowed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
