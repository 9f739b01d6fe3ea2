"""Runs the jobs of a sweep as `python -m rlexp.train`, skips those that are finished, and ends with the table of results."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

_NOT_FOR_JOBS = ("hydra.mode", "hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweeper", "hydra.sweep")
"""Overrides of Hydra that are about the sweep; all others, e.g. hydra.searchpath, go to the jobs too"""


class RlexpLocalLauncher(Launcher):
    """See the package. Exits the program with 1 when a job failed, 75 when the sweep was stopped and can be continued."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra hands over the composed config of the sweep."""
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs and print the table of the sweep and how many finished and failed."""
        # Imported here: Hydra imports every launcher at each start, also for --help.
        from rlexp.launch.folder import FAILED
        from rlexp.launch.jobs import run_jobs
        from rlexp.launch.signals import PREEMPTED_CODE, handling
        from rlexp.launch.sweep_view import SweepView, totals_text
        from rlexp.reports.sweep_folder import record_jobs
        from rlexp.reports.sweep_table import read_sweep, text_table

        folder = Path(str(self.config.hydra.sweep.dir)).absolute()
        jobs = self._jobs(job_overrides, folder)
        settings = self._settings()
        record_jobs(folder, {job.name: list(job.overrides) for job in jobs})
        print(f"{len(jobs)} jobs, {settings.jobs} at a time, in {folder}", flush=True)
        with handling() as stop, SweepView(len(jobs)) as view:
            results = run_jobs(
                jobs, settings.jobs, folder / "logs", view, stop, stop_on_failure=settings.stop_on_failure, environment=self._environment(settings.jobs)
            )
        record_jobs(folder, {result.job.name: list(result.job.overrides) for result in results}, {result.job.name: result.reason for result in results})
        table = read_sweep(folder)
        print(f"{text_table(table)}\n{totals_text(results)}", flush=True)
        failed = [result for result in results if result.state == FAILED]
        for result in failed:
            print(f"\nfailed: {' '.join(result.job.overrides)}\n  {result.reason}\n  log: {folder / 'logs' / f'{result.job.name}.log'}", file=sys.stderr)
        if stop.requested:
            print("stopped; the same command continues the sweep", file=sys.stderr)
            sys.exit(PREEMPTED_CODE)
        if failed:
            sys.exit(1)
        objectives = {row.name: row.objective for row in table.rows}
        return [_returned(overrides, folder, objectives) for overrides in job_overrides]

    def _settings(self) -> Any:
        """The group `sweep`; raises UserError for a value out of range."""
        from rlexp.config.errors import UserError, listed
        from rlexp.config.fields import problems_of
        from rlexp.config.training import SweepConfig

        settings = SweepConfig(**OmegaConf.to_container(self.config.sweep))  # type: ignore[arg-type]
        problems = problems_of(settings, "sweep.")
        if problems:
            raise UserError(listed(problems))
        return settings

    def _jobs(self, job_overrides: Sequence[Sequence[str]], folder: Path) -> list:
        """One job for each folder; overrides that are given twice make one."""
        from rlexp.config.names import job_name
        from rlexp.launch.jobs import Job

        program = (sys.executable, "-m", "rlexp.train", *self._flags())
        common = set.intersection(*(set(overrides) for overrides in job_overrides))
        jobs = {}
        for overrides in job_overrides:
            name = job_name(overrides)
            label = " ".join(override for override in overrides if override not in common) or " ".join(overrides)
            jobs[name] = Job(tuple(overrides), (*program, *overrides), folder / name, label)
        return list(jobs.values())

    def _flags(self) -> list[str]:
        """What of this command line is not a task override and yet decides what a job is."""
        hydra = self.config.hydra
        given = [str(override) for override in hydra.overrides.hydra if not str(override).startswith(_NOT_FOR_JOBS)]
        folders = [source.path for source in hydra.runtime.config_sources if source.provider == "command-line"]
        named = [] if hydra.job.config_name == "config" else ["--config-name", str(hydra.job.config_name)]
        return [*(word for path in folders for word in ("--config-dir", path)), *named, *given]

    @staticmethod
    def _environment(parallel: int) -> dict[str, str]:
        """A share of the cores for each job, and plain error messages: while Hydra runs, the program asks it for tracebacks."""
        from rlexp.launch.threads import cores

        environment = {"HYDRA_FULL_ERROR": ""}
        if parallel > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(1, cores() // parallel))
        return environment


def _returned(overrides: Sequence[str], folder: Path, objectives: dict[str, float | None]) -> JobReturn:
    """A job's result for Hydra's sweepers: the objective, which those that optimise something read."""
    from rlexp.config.names import job_name

    name = job_name(overrides)
    done = JobReturn()
    done.overrides, done.working_dir, done.status = list(overrides), str(folder / name), JobStatus.COMPLETED
    done.return_value = objectives.get(name)
    return done
