"""Train a model: compose the config, check it, run. `python -m rlexp.train --help` lists what can be chosen."""

from __future__ import annotations

import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from rlexp import plugins, resolvers
from rlexp.components import register_all
from rlexp.config.convert import checked_config
from rlexp.config.errors import UserError
from rlexp.config.hydra_versions import BASE
from rlexp.config.messages import guarded
from rlexp.config.plan import plan_text
from rlexp.config.vllm_server import VLLMServerGenerationConfig
from rlexp.registry import conf_dir


def _run(cfg: DictConfig) -> int:
    config = checked_config(cfg)
    if config.generation.generation_kwargs or config.run.start_from is not None:
        from rlexp.launch.opening import check_before_start

        check_before_start(config)
    if config.run.dry:
        print(plan_text(config))
        if isinstance(config.generation, VLLMServerGenerationConfig) and not config.generation.launch:
            from rlexp.generation.vllm_server.command import line_for

            print(f"server\n  {line_for(config)}")
        return 0
    from rlexp.launch.start import start  # loads torch, which configuring never does

    return start(config, list(HydraConfig.get().overrides.task))


def body(cfg: DictConfig) -> None:
    """One run. Exits with its code, or with 1 and one message for what a user can fix."""
    try:
        code = _run(cfg)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    if code:
        sys.exit(code)


def main() -> None:
    """The console script `rlexp-train`."""
    register_all()
    plugins.install()
    resolvers.register()
    sys.exit(guarded(hydra.main(config_path=str(conf_dir()), config_name="config", **BASE)(body)))


if __name__ == "__main__":
    main()
