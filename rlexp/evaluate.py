"""Evaluate the weights of a run on its held-out tasks and write evaluation.json into its folder.

The newest checkpoint is taken unless checkpoint= names another; without any, the final model. Further KEY=VALUE change the run's
configuration for this evaluation only: evaluation.num_generations=16 for pass@k, or data=files data.path=other.jsonl.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rlexp import plugins, resolvers
from rlexp.components import register_all
from rlexp.config.errors import UserError
from rlexp.launch.files import write_json
from rlexp.launch.folder import outputs_root
from rlexp.tracking.jsonl import plain

USAGE = "usage: python -m rlexp.evaluate run=outputs/NAME [checkpoint=latest|best|step_000010] [KEY=VALUE ...]"


def parse(arguments: list[str]) -> tuple[Path, str | None, list[str]]:
    """The run folder, the checkpoint (None: the newest) and the overrides. Raises UserError."""
    given = dict(argument.split("=", 1) for argument in arguments if argument.startswith(("run=", "checkpoint=")))
    overrides = [argument for argument in arguments if not argument.startswith(("run=", "checkpoint="))]
    wrong = [override for override in overrides if "=" not in override]
    if wrong or not given.get("run"):
        raise UserError(USAGE + (f" (not understood: {wrong[0]})" if wrong else ""))
    folder = Path(given["run"]).expanduser()
    places = [place for place in (folder, outputs_root() / folder) if (place / "config.yaml").is_file()]
    if not places:
        raise UserError(f"run={folder} is no run folder (it holds no config.yaml): give its path, outputs/NAME")
    return places[0], given.get("checkpoint"), overrides


def table(metrics: dict[str, float]) -> str:
    """Metrics for a terminal, a line each."""
    width = max(len(name) for name in metrics)
    return "\n".join(f"{name.ljust(width)}  {value:.6g}" for name, value in metrics.items())


def main() -> None:
    """Print the metrics and write evaluation.json into the run folder."""
    if {"-h", "--help"}.intersection(sys.argv[1:]):
        print(f"{USAGE}\n\n{__doc__}")
        return
    register_all()
    plugins.install()
    resolvers.register()
    try:
        folder, checkpoint, overrides = parse(sys.argv[1:])
        from rlexp.build import evaluate_run  # imports torch

        metrics = evaluate_run(folder, checkpoint, overrides)
        print(table(metrics))
        found = {"checkpoint": checkpoint, "overrides": overrides, "metrics": {name: plain(value) for name, value in metrics.items()}}
        write_json(folder / "evaluation.json", found)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
