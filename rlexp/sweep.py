"""A sweep from the terminal: its table and curves, and its jobs stopped, resumed and cloned."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlexp.config.errors import UserError
from rlexp.launch import control
from rlexp.reports.sweep_page import write_page
from rlexp.reports.sweep_table import csv_table, read_sweep, reasons_text, text_table

EXAMPLES = """examples:
  python -m rlexp.sweep outputs/sweeps/NAME --sort accuracy
  python -m rlexp.sweep outputs/sweeps/NAME stop 3
  python -m rlexp.sweep outputs/sweeps/NAME resume 3
  python -m rlexp.sweep outputs/sweeps/NAME clone 2 optimizer.learning_rate=3e-6
"""


def _parser() -> argparse.ArgumentParser:
    about = "What differed between the runs of a sweep (or of any folder of runs), and what came out; sweep.html in that folder shows their curves."
    parser = argparse.ArgumentParser(prog="rlexp-sweep", description=about, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a sweep's folder, outputs/sweeps/NAME, or a folder of run folders, outputs")
    parser.add_argument("--sort", metavar="COLUMN", help="order by a column, e.g. accuracy, reward, seconds, run.seed")
    parser.add_argument("--csv", action="store_true", help="print CSV with all digits")
    commands = parser.add_subparsers(
        dest="command", metavar="stop|resume|clone", help="what to do with a job, by its number in the table; without one, the table"
    )
    stop = commands.add_parser("stop", help="a running job finishes its step, saves and stops; another one is not started any more")
    stop.add_argument("jobs", type=int, nargs="+", metavar="JOB")
    resume = commands.add_parser("resume", help="run a job that was stopped or paused to its end, here and now")
    clone = commands.add_parser("clone", help="a new job with changed settings that starts from the newest checkpoint of another one, here and now")
    for command in (resume, clone):
        command.add_argument("job", type=int, metavar="JOB")
        command.add_argument("--print", action="store_true", dest="show", help="print the command instead of running it")
    clone.add_argument("--anew", action="store_true", help="start from the model's own weights instead of the checkpoint")
    clone.add_argument("changes", nargs="+", metavar="KEY=VALUE")
    return parser


def _table(arguments: argparse.Namespace) -> int:
    table = read_sweep(arguments.folder)
    if arguments.sort:
        table.sort(arguments.sort)
    if arguments.csv:
        print(csv_table(table), end="")
    else:
        print(f"{text_table(table)}\n{reasons_text(table)}\n{write_page(arguments.folder, table)}")
    return 0


def _command(arguments: argparse.Namespace) -> int:
    folder = arguments.folder
    if arguments.command == "stop":
        for number in arguments.jobs:
            print(control.stop(folder, number))
        return 0
    resume = arguments.command == "resume"
    job = control.resumed(folder, arguments.job) if resume else control.cloned(folder, arguments.job, arguments.changes, arguments.anew)
    if isinstance(job, str) or arguments.show:
        print(job if isinstance(job, str) else control.command_line(job))
        return 0
    return control.run_here(job)


def main() -> None:
    """The console script `rlexp-sweep`."""
    arguments = _parser().parse_args()
    try:
        sys.exit(_command(arguments) if arguments.command else _table(arguments))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
