"""Runs the jobs of a sweep as `python -m rlexp.train`, skips those that are finished, and ends with the table of results."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from rlexp.config.run import RunConfig
    from rlexp.config.sweep import SweepConfig
    from rlexp.launch.halving import Halving, Run
    from rlexp.launch.jobs import Job, Result

_NOT_FOR_JOBS = ("hydra.mode", "hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweeper", "hydra.sweep")
"""Overrides of Hydra that are about the sweep; all others, e.g. hydra.searchpath, go to the jobs too"""


class RlexpLocalLauncher(Launcher):
    """See the package. Exits the program with 1 when a job failed, 75 when the sweep was stopped and can be continued."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra hands over the composed config of the sweep."""
        self.config, self.context = config, hydra_context

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs and print the table of the sweep and how many finished and failed."""
        # Imported here: Hydra imports every launcher at each start, also for --help.
        from rlexp.launch.external import refuse_ranks
        from rlexp.launch.sweep_view import totals_text
        from rlexp.records.sweep import forget_empty, record_jobs
        from rlexp.reports.sweep_page import write_page
        from rlexp.reports.sweep_table import read_sweep, text_table

        folder = Path(str(self.config.hydra.sweep.dir)).absolute()
        try:
            refuse_ranks()
            results, words, stopped = self._run(job_overrides, folder)
        except BaseException:
            forget_empty(folder)  # refused, and Hydra made it
            raise
        record_jobs(folder, {result.job.name: result.job.overrides for result in results}, {result.job.name: result.reason for result in results})
        table = read_sweep(folder)
        print(f"{text_table(table)}\n{write_page(folder, table)}\n{totals_text(results)}", *words, sep="\n", flush=True)
        self._exit_unless_done(results, folder, stopped)
        objectives = {row.name: row.objective for row in table.rows}
        return [_returned(overrides, folder, objectives) for overrides in job_overrides]

    def _run(self, job_overrides: Sequence[Sequence[str]], folder: Path) -> tuple[list[Result], list[str], bool]:
        """How each job ended, what else is to be said after the table, and whether the sweep was stopped. Refuses what it can before a job is recorded."""
        from rlexp.config.names import job_name
        from rlexp.launch.jobs import run_jobs
        from rlexp.launch.signals import handling
        from rlexp.launch.sweep_view import SweepView

        settings = self._settings()
        count = len({job_name(overrides) for overrides in job_overrides})
        places = self._places(settings, count)
        halving = self._halving(job_overrides[0], count) if settings.method == "halving" else None
        jobs = self._jobs(job_overrides, folder)
        print(f"{len(jobs)} jobs, {settings.jobs} at a time, in {folder}", flush=True)
        with handling() as stop:

            def run(some: Sequence[Job]) -> list[Result]:
                with SweepView(len(some)) as view:
                    return run_jobs(some, places, folder / "logs", view, stop, stop_on_failure=settings.stop_on_failure)

            if halving is None:
                return run(jobs), [], stop.requested
            return self._halved(jobs, *halving, run, lambda: stop.requested)

    @staticmethod
    def _halved(jobs: list[Job], halving: Halving, total: int | None, run: Run, stopped: Callable[[], bool]) -> tuple[list[Result], list[str], bool]:
        """What `_run` returns, of jobs that are run a rung at a time."""
        from rlexp.launch.halving import settled_text

        results, started = halving.run(jobs, run, lambda line: print(line, flush=True))
        return results, [halving.summary(jobs, total), settled_text(len(jobs), started)], stopped()

    @staticmethod
    def _exit_unless_done(results: Sequence[Result], folder: Path, stopped: bool) -> None:
        from rlexp.launch.folder import FAILED, PREEMPTED
        from rlexp.launch.signals import PREEMPTED_CODE

        failed = [result for result in results if result.state == FAILED]
        for result in failed:
            print(f"\nfailed: {' '.join(result.job.overrides)}\n  {result.reason}\n  log: {folder / 'logs' / f'{result.job.name}.log'}", file=sys.stderr)
        if stopped or any(result.state == PREEMPTED for result in results):
            print("stopped; the same command continues the sweep", file=sys.stderr)
            sys.exit(PREEMPTED_CODE)
        if failed:
            sys.exit(1)

    def _settings(self) -> SweepConfig:
        """The group `sweep`; raises UserError for a value out of range."""
        from rlexp.config.errors import UserError, listed
        from rlexp.config.fields import problems_of
        from rlexp.config.sweep import SweepConfig

        settings = SweepConfig(**OmegaConf.to_container(self.config.sweep))  # type: ignore[arg-type]
        problems = problems_of(settings, "sweep.")
        if problems:
            raise UserError(listed(problems))
        return settings

    def _places(self, settings: SweepConfig, jobs: int) -> list[dict[str, str]]:
        """GPUs and cores for each job that runs at a time, and plain error messages: while Hydra runs, the program asks it for tracebacks."""
        from rlexp.config.errors import UserError
        from rlexp.launch.places import places

        shared = places(settings, jobs, int(self.config.cluster.processes_per_node), os.environ)
        devices = self.config.generation.get("devices")
        if len(shared) > 1 and devices is not None:
            raise UserError(f"generation.devices={devices} would put the servers of all sweep.jobs={settings.jobs} jobs on the same GPUs: leave one out")
        return [{**environment, "HYDRA_FULL_ERROR": ""} for environment in shared]

    def _halving(self, overrides: Sequence[str], jobs: int) -> tuple[Halving, int | None]:
        """The rungs of the sweep and the number of steps of a run (None when its data tell), by the config of its first job. Raises UserError."""
        from rlexp.config.errors import UserError, listed
        from rlexp.config.validate_sweep import problems
        from rlexp.launch.halving import Halving, rungs

        config = self._config_of(overrides)
        if wrong := list(problems(config)):
            raise UserError(listed(wrong))
        total, every = config.trainer.max_steps, config.evaluation.steps
        assert every is not None  # one of the problems
        return Halving(config.sweep, rungs(config.sweep, jobs, total, every)), total

    def _config_of(self, overrides: Sequence[str]) -> RunConfig:
        """The typed config of a job. Raises UserError for keys, names and types that are wrong."""
        from rlexp.config.convert import to_run_config

        composed = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        return to_run_config(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]))

    def _jobs(self, job_overrides: Sequence[Sequence[str]], folder: Path) -> list[Job]:
        """One job for each folder, recorded with its number; overrides that are given twice make one."""
        from rlexp.config.names import job_name
        from rlexp.launch.jobs import Job, program
        from rlexp.records.sweep import record_jobs, recorded_jobs

        flags = self._flags()
        named = {job_name(overrides): list(overrides) for overrides in job_overrides}
        record_jobs(folder, named, flags=flags)
        numbers = {name: number for number, name in enumerate(recorded_jobs(folder), start=1)}
        common = set.intersection(*(set(overrides) for overrides in job_overrides))
        jobs = []
        for name, overrides in named.items():
            label = " ".join(override for override in overrides if override not in common) or " ".join(overrides)
            jobs.append(Job(tuple(overrides), program(flags, overrides), folder / name, label, numbers[name]))
        return jobs

    def _flags(self) -> list[str]:
        """What of this command line is not a task override and yet decides what a job is."""
        hydra = self.config.hydra
        given = [str(override) for override in hydra.overrides.hydra if not str(override).startswith(_NOT_FOR_JOBS)]
        folders = [source.path for source in hydra.runtime.config_sources if source.provider == "command-line"]
        named = [] if hydra.job.config_name == "config" else ["--config-name", str(hydra.job.config_name)]
        return [*(word for path in folders for word in ("--config-dir", path)), *named, *given]


def _returned(overrides: Sequence[str], folder: Path, objectives: dict[str, float | None]) -> JobReturn:
    """A job's result for Hydra's sweepers: the objective, which those that optimise something read."""
    from rlexp.config.names import job_name

    name = job_name(overrides)
    done = JobReturn()
    done.overrides, done.working_dir, done.status = list(overrides), str(folder / name), JobStatus.COMPLETED
    done.return_value = objectives.get(name)
    return done
