"""The table of a sweep: `python -m rlexp.sweep outputs/sweeps/NAME`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlexp.config.errors import UserError
from rlexp.reports.sweep_table import csv_table, read_sweep, reasons_text, text_table


def main() -> None:
    """The console script `rlexp-sweep`."""
    parser = argparse.ArgumentParser(prog="rlexp-sweep", description="What differed between the runs of a sweep (or of any folder of runs), and what came out.")
    parser.add_argument("folder", type=Path, help="a sweep's folder, outputs/sweeps/NAME, or a folder of run folders, outputs")
    parser.add_argument("--sort", metavar="COLUMN", help="order by a column, e.g. accuracy, reward, seconds, run.seed")
    parser.add_argument("--csv", action="store_true", help="print CSV with all digits")
    arguments = parser.parse_args()
    try:
        table = read_sweep(arguments.folder)
        if arguments.sort:
            table.sort(arguments.sort)
    except UserError as error:
        sys.exit(f"error: {error}")
    print(csv_table(table) if arguments.csv else f"{text_table(table)}\n{reasons_text(table)}", end="")


if __name__ == "__main__":
    main()
