"""The page about a run: `python -m rlexp.report outputs/NAME` writes outputs/NAME/report.html anew."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlexp.config.errors import UserError
from rlexp.reports.html import write_report


def main() -> None:
    """The console script `rlexp-report`."""
    parser = argparse.ArgumentParser(prog="rlexp-report", description="Write report.html of a run anew, from the files in its folder.")
    parser.add_argument("folder", type=Path, nargs="+", help="run folders, outputs/NAME")
    for folder in parser.parse_args().folder:
        try:
            print(write_report(folder))
        except UserError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
