"""What a run needs, told from its config alone: memory of each device by part and phase, and the tokens of a step.

No weights are loaded: of a hub model config.json is read. --gpu GIB plans for a GPU with so much memory instead of this machine,
--prompt-tokens N for prompts of that length, --check trains a few steps at the planned size on this machine and compares.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from rlexp import plugins, resolvers
from rlexp.components import register_all
from rlexp.config.convert import checked_config
from rlexp.config.errors import UserError
from rlexp.config.hydra_versions import BASE
from rlexp.config.messages import guarded
from rlexp.config.run import RunConfig
from rlexp.registry import conf_dir

USAGE = "python -m rlexp.plan [KEY=VALUE ...] [--gpu GIB] [--prompt-tokens N] [--check]"


def body(cfg: DictConfig, own: argparse.Namespace) -> None:
    """Print the plan of one config. Exits with 1 for what a user can fix, and when --check finds another number."""
    try:
        config = checked_config(cfg)
        from rlexp.build import build_algorithm  # imports torch
        from rlexp.planning.program import show

        agrees = show(config, build_algorithm, own.gpu, own.prompt_tokens, own.check)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0 if agrees else 1)


def trainer_of(config: RunConfig, folder: Path) -> Any:
    """The trainer of a run in a folder, for the process that --check measures."""
    from rlexp.build import build, prepare_torch
    from rlexp.distributed.strategy.single import SingleStrategy
    from rlexp.launch.folder import RunFolder

    prepare_torch(config, 1)
    return build(config, RunFolder(folder), SingleStrategy(config.strategy))[0]


def main() -> None:
    """The console script `rlexp-plan`."""
    parser = argparse.ArgumentParser(allow_abbrev=False, usage=USAGE, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=float, metavar="GIB")
    parser.add_argument("--prompt-tokens", type=int, metavar="N")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    own, rest = parser.parse_known_args()
    if own.probe:
        from rlexp.planning.probe import measure

        print(measure(Path(own.probe), trainer_of))
        return
    if {"-m", "--multirun"}.intersection(rest):
        print("error: rlexp.plan takes one config: leave -m out and choose one value of each key", file=sys.stderr)
        sys.exit(1)
    register_all()
    plugins.install()
    resolvers.register()
    sys.argv = [sys.argv[0], *rest]
    sys.exit(guarded(hydra.main(config_path=str(conf_dir()), config_name="config", **BASE)(lambda cfg: body(cfg, own))))


if __name__ == "__main__":
    main()
