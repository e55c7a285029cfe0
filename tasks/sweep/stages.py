"""Tasks of a sweep's flow: its folder is opened and held, every arm runs once per seed, a report and a summary come of it."""

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.config.derived import starts_server
from grpo_core.errors import SweepError
from grpo_core.generation.vllm.opening import require_sampler
from grpo_core.run.child import FOLDERS_VARIABLE, import_folders
from grpo_core.run.fit import require_places
from grpo_core.run.flow_folder import make_folder
from grpo_core.run.preflight import CHECKED_VARIABLE
from grpo_core.run.resuming import path_argument
from grpo_core.sweep.campaign import Campaign, Launcher
from grpo_core.sweep.extension import extended
from grpo_core.sweep.folder import StoredSweep, SweepDir
from grpo_core.sweep.planning import plan_file, read_plan
from grpo_core.sweep.preregistration import preregister
from grpo_core.sweep.study import SweepStudy
from grpo_core.text import for_markdown
from tasks.credentials import address_variables, usable_uri
from tasks.deployment_limits import check_root, load_allowed_sweep, refuse_code_of_sweep
from tasks.process.context import deployed_flow_run, is_deployed
from tasks.process.prefect_outage import cancel_watch, prefect_may_be_away, progress_artifact, was_interrupted
from tasks.run.inputs import check_sweep_disk, digest_before
from tasks.run.progress import say
from tasks.run.reporting import REPORT_RETRIES, markdown_report, whereabouts
from tasks.run.setup import claim, earlier_attempt
from tasks.sweep.deployed import DeploymentLauncher
from tasks.sweep.local import LocalLauncher
from tasks.tracking.store import TrackedRun, refuse_foreign
from tasks.tracking.sweep import log_results, read_parent
from tasks.tracking.training import collect_problems

INTERRUPTED = (
    "interrupted: the runs under way finish their step and checkpoint before the sweep ends; a second Ctrl-C or SIGTERM kills "
    "them\n"
)


@task(name="open-sweep", cache_policy=NO_CACHE)
def open_sweep(file: str, overrides: Mapping[str, Any], sweep_path: Path | None) -> Path:
    """Return the folder of a new sweep; for a retry of this flow run, the folder that it has.

    Raises:
        ConfigError: the sweep is refused, an arm runs code that a deployment may not run, or has more processes than there are
            slots or GPUs here; nothing has been run.
        SweepError: the folder already holds a sweep.
        FolderError: it is not ours, or a deployed flow may not write there.
    """
    if (earlier := earlier_attempt(sweep_path, "sweep_dir")) is not None:
        return earlier
    plan, name = load_allowed_sweep(file, overrides), Path(file).stem
    for note in plan.notes:
        say(f"warning: {note}")
    require_sampler(plan.configs)
    if plan.sweep.runs.where == "local":
        require_places(plan.configs)
    check_sweep_disk(sweep_path, plan)
    path = sweep_path or make_folder(name)
    SweepDir(path).mark("sweep")
    with SweepDir(path).locked():
        folders = () if is_deployed() else import_folders(plan.configs[0], plan.sweep.base)
        made = read_plan(plan_file(path.parent, name), plan)
        preregister(SweepDir(path), plan, made, digest_before(plan))
        SweepDir(path).create(plan, name, f"{name}-{secrets.token_hex(4)}", folders)
        claim(path)
    say(
        f"{plan.num_arms} settings x {len(plan.sweep.seeds)} seeds = {plan.num_runs} runs, "
        f"{plan.sweep.runs.concurrency} at a time, in {path}"
    )
    return path


@contextlib.contextmanager
def hold_sweep(sweep_path: Path, changes: Mapping[str, Any] | None = None) -> Iterator[StoredSweep]:
    """Keep every other flow out of a sweep while inside; seeds, values or trials that `changes` add are written down first.

    Raises:
        SweepError: it is none.
        ConfigError: an arm runs code that a deployment may not run, or `changes` do more than to add.
        TrackingError: it is resumed, and tracked at an address that is not ours.
        FolderError: another flow works on it, or a deployed flow may not write there.
    """
    check_root(sweep_path, "sweep_dir")
    stored = extended(SweepDir(sweep_path).read(), changes or {})  # nothing is written into a folder that is no sweep's
    refuse_code_of_sweep(stored.plan)
    uri = stored.plan.configs[0].tracking.uri
    if uri is not None and stored.dir.arms_file.exists():  # it is resumed
        refuse_foreign(stored.dir, "sweep.json", uri)
    with stored.dir.locked():
        if changes:
            stored.dir.write(stored)
        yield stored


@task(name="run-arms", cache_policy=NO_CACHE)
def run_arms(stored: StoredSweep, tracked: TrackedRun, retry_failed: bool = False) -> None:
    """Run what is left to run of a sweep; no further run begins once more have failed than `failed_runs_allowed`.

    Raises:
        SweepError: the study or what starts the runs cannot be used.
    """
    study = SweepStudy(stored)
    outcomes = stored.dir.read_outcomes()
    if retry_failed:
        outcomes = {key: outcome for key, outcome in outcomes.items() if outcome.status != "failed"}
    # Without the address each run would track beside its own folder, inside the sweep's.
    tracking = {"tracking.parent": tracked.run_id, **({} if tracked.has_pages else {"tracking.uri": tracked.uri})}
    percent = progress_artifact("sweep-progress", for_markdown(stored.name))
    with contextlib.closing(study), cancel_watch() as pause, _launcher(stored, tracked, len(outcomes)) as launcher:
        campaign = Campaign(stored, study, outcomes, launcher, tracking=tracking, report_line=say, report_percent=percent)
        try:
            say(f"its page: {stored.dir.page}")
            while campaign.proceed():
                pause()
        except BaseException as error:
            if was_interrupted(error) and deployed_flow_run() is None:
                with contextlib.suppress(OSError):  # the terminal may be gone
                    sys.stderr.write(INTERRUPTED)
            if was_interrupted(error) or not launcher.outlives_the_sweep:
                launcher.interrupt()
            campaign.write_page(is_running=False)
            raise


@contextlib.contextmanager
def _launcher(stored: StoredSweep, tracked: TrackedRun, num_done: int) -> Iterator[Launcher]:
    """Yield what starts the runs but those that are done; vLLM servers that runs of this machine share end with it."""
    runs, configs = stored.plan.sweep.runs, stored.plan.configs
    if runs.where == "deployment":
        yield DeploymentLauncher(stored.id, runs.deployment)
        return
    # Checked before the sweep began; and a run that is resumed goes on where the sweep is tracked.
    folders = os.pathsep.join(stored.import_from)
    variables = {CHECKED_VARIABLE: "1", **address_variables(usable_uri(tracked.uri)), FOLDERS_VARIABLE: folders}
    server_logs = stored.dir.vllm if any(map(starts_server, configs)) else None
    processes, left = max(config.training.processes for config in configs), stored.plan.num_runs - num_done
    with contextlib.closing(LocalLauncher(runs.concurrency, variables, server_logs, processes, left)) as launcher:
        yield launcher


def refuse_failures(stored: StoredSweep) -> None:
    """End a sweep as failed where too many of its runs have.

    Raises:
        SweepError: names the bound, the number, and the first cause.
    """
    allowed = stored.plan.sweep.failed_runs_allowed
    failed = [outcome for outcome in stored.dir.read_outcomes().values() if outcome.status == "failed"]
    if len(failed) > allowed:
        first = failed[0]
        name = stored.dir.read_arms()[first.arm].run_name(first.seed)
        raise SweepError(
            f"failed_runs_allowed: {allowed}, and {len(failed)} run(s) have failed; the first is {name}: {first.cause}; "
            f"once that is fixed, `grpo sweep --resume {path_argument(stored.dir.path)} --retry-failed` runs them again"
        )


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """What a sweep's flow returns."""

    sweep_path: Path
    page: Path
    answer: tuple[str, ...]
    statuses: dict[str, int]
    tracked: TrackedRun
    problems: tuple[str, ...] = ()


@task(name="report-sweep", cache_policy=NO_CACHE)
def report_sweep(stored: StoredSweep, tracked: TrackedRun) -> SweepSummary:
    """Write the report, upload it to MLflow and keep its words as an artifact of the flow run."""
    statuses, answer, problems = _report(stored, tracked)
    with prefect_may_be_away(REPORT_RETRIES):
        markdown = markdown_report(f"Sweep {tracked.name}", whereabouts(tracked, "report", stored.dir.page), answer)
        create_markdown_artifact(markdown, key="sweep-report", description=f"Sweep {for_markdown(tracked.name)}")
    return SweepSummary(
        sweep_path=stored.dir.path,
        page=stored.dir.page,
        answer=answer,
        statuses=statuses,
        tracked=tracked,
        problems=problems,
    )


def report_again(sweep_path: Path) -> tuple[Path, tuple[str, ...], tuple[str, ...]]:
    """Report on a sweep as it is now, and upload the report to MLflow where it is tracked; return (page, answer, problems).

    Raises:
        SweepError: the folder holds no sweep.
    """
    stored = SweepDir(sweep_path).read()
    _, answer, problems = _report(stored, read_parent(stored.dir))
    return stored.dir.page, answer, problems


def _report(stored: StoredSweep, tracked: TrackedRun | None) -> tuple[dict[str, int], tuple[str, ...], tuple[str, ...]]:
    """Write the report and upload it where the sweep is tracked; return statuses, answer, and what could not be done."""
    from grpo_core.compare.page import compare_sweep
    from grpo_core.sweep.report.files import make_report

    again = f"`grpo report {path_argument(stored.dir.path)}` tries again"
    comparison, fault = compare_sweep(stored)
    sweep, found = make_report(stored, comparison)
    problems = [] if fault is None else [f"the runs are not compared ({fault}); {again}"]
    if tracked is not None:
        with collect_problems(problems, "the report is not in MLflow", f"; {again}"):
            log_results(tracked, stored, sweep, found.lines)
    return sweep.statuses(), found.lines, tuple(problems)
