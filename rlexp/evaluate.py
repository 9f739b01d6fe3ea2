"""Evaluate a finished or unfinished run on its held-out tasks: python -m rlexp.evaluate run=outputs/NAME [checkpoint=step_000010] [KEY=VALUE ...]

Further KEY=VALUE change the run's configuration for this evaluation only, e.g. evaluation.num_generations=16 data.eval_size=500.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rlexp import plugins
from rlexp.components import register_all
from rlexp.config.errors import UserError


def parse(arguments: list[str]) -> tuple[Path, str | None, list[str]]:
    """The run folder, the checkpoint (None: the newest) and the overrides."""
    given = dict(argument.split("=", 1) for argument in arguments if argument.startswith(("run=", "checkpoint=")))
    overrides = [argument for argument in arguments if not argument.startswith(("run=", "checkpoint="))]
    wrong = [override for override in overrides if "=" not in override]
    if "run" not in given or wrong:
        raise UserError(
            f"usage: python -m rlexp.evaluate run=outputs/NAME [checkpoint=step_000010] [KEY=VALUE ...]{f' (not understood: {wrong[0]})' if wrong else ''}"
        )
    return Path(given["run"]), given.get("checkpoint"), overrides


def main() -> None:
    """Print the metrics and write evaluation.json into the run folder."""
    register_all()
    plugins.install()
    try:
        folder, checkpoint, overrides = parse(sys.argv[1:])
        from rlexp.build import evaluate_run  # imports torch

        metrics = evaluate_run(folder, checkpoint, overrides)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    for name, value in metrics.items():
        print(f"{name:40} {value:.6g}")
    (folder / "evaluation.json").write_text(json.dumps({"checkpoint": checkpoint, "overrides": overrides, "metrics": metrics}, indent=1) + "\n")


if __name__ == "__main__":
    main()
