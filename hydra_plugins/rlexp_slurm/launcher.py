"""Submits the jobs of a sweep to Slurm, as one array, and waits for them unless told not to; the rest is as with the launcher for one machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# The module, not the class: Hydra would take an imported class for a launcher of this module.
from hydra_plugins.rlexp_local import launcher as local

if TYPE_CHECKING:
    from rlexp.config.run import RunConfig
    from rlexp.launch.jobs import Job, Result


class RlexpSlurmLauncher(local.RlexpLocalLauncher):
    """See the package. Ends the program after the submission with cluster.wait=false, and after printing with cluster.dry_run=true."""

    def _run(self, job_overrides: Sequence[Sequence[str]], folder: Path) -> tuple[list[Result], list[str], bool]:
        """How each job ended. Raises UserError, before anything is submitted or recorded, when one of them could not run."""
        from rlexp.config.cluster import SlurmClusterConfig
        from rlexp.launch.opening import check_before_start
        from rlexp.launch.slurm.sweep import preview, submit_sweep, submitted_text, wait_for_sweep

        configs = self._checked(job_overrides)
        for name, config in configs.items():
            check_before_start(config, folder / name)
        first = next(iter(configs.values())).cluster
        assert isinstance(first, SlurmClusterConfig)
        settings = self._settings()
        halving = self._halving(job_overrides[0], len(configs)) if settings.method == "halving" else None
        if first.dry_run:
            print(preview(list(configs.values()), folder), end="")
            sys.exit(0)
        jobs = self._jobs(job_overrides, folder)

        def run(some: Sequence[Job]) -> list[Result]:
            submitted, settled = submit_sweep(some, configs, folder)
            print(submitted_text(submitted, settled, folder), flush=True)
            if not first.wait:
                sys.exit(0)
            return wait_for_sweep(submitted, settled, folder, first.poll, stop_on_failure=settings.stop_on_failure)

        return (run(jobs), [], False) if halving is None else self._halved(jobs, *halving, run, lambda: False)

    def _checked(self, job_overrides: Sequence[Sequence[str]]) -> dict[str, RunConfig]:
        """Name -> config of every job. Raises one UserError with the problems of all."""
        from omegaconf import OmegaConf

        from rlexp.config.convert import all_problems
        from rlexp.config.errors import UserError, listed
        from rlexp.config.names import job_name

        configs, problems = {}, []
        for overrides in job_overrides:
            composed = self.context.config_loader.load_sweep_config(self.config, list(overrides))
            config, found = all_problems(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]))
            configs[job_name(overrides)] = config
            problems += found
        if problems:
            raise UserError(listed(list(dict.fromkeys(problems))))
        if not {config.cluster.name for config in configs.values()} == {"slurm"}:
            raise UserError("cluster is not the same in all jobs of the sweep: run those of cluster=slurm and those of cluster=local as two sweeps")
        return configs
