"""Tasks: the folder of a run is made, or found to resume it, and held: a new run, one that repeats another, an evaluation.

An evaluation is a run dir like a training's, whose model is the policy and whose prompts are all held out. What came of a
repetition is part of the run's report (`tasks/run/reporting.py`).
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from grpo_core.config import Origin, RunConfig, apply_overrides, changes_between, run_name, validate_config
from grpo_core.config.derived import code_in, repeatability, weight_shards
from grpo_core.config.origin import Resolved
from grpo_core.data.prepare import DataManifest, freeze, load_frozen, split_of_frozen
from grpo_core.data.splitting import hold_out_all
from grpo_core.errors import DataError
from grpo_core.evaluation.plan import EvaluationPlan, configure_evaluation, find_subject, subject_of_run
from grpo_core.evaluation.results import HELD_OUT, set_name
from grpo_core.generation.vllm.opening import require_sampler
from grpo_core.machine.disk import flush_all, write_json, write_whole
from grpo_core.run.child import import_folders, is_own_folder
from grpo_core.run.fit import require_places
from grpo_core.run.flow_folder import RUNS_FOLDER, FlowDir
from grpo_core.run.folder import RunDir, batch_limits, change_passes, computed_by
from grpo_core.run.forking import NOT_OF_A_SWEEP, copy_records, folder_and_step, fork_of, inherited_journal, take_over
from grpo_core.run.integrity import check_run, cut, find_intact
from grpo_core.run.reproduction import POLICY_FILE, config_differences, copy_prompts, final_policy, refuse_unfit
from grpo_core.run.resuming import check_resumable, lock_run, new_run, remove_if_never_started
from tasks.deployment_limits import check_root, hide_contents, load_allowed, refuse_code
from tasks.process.context import is_deployed
from tasks.process.prefect_outage import was_interrupted
from tasks.run.inputs import prompts_of
from tasks.run.progress import say
from tasks.tracking.fetch import fetch_policy, fetch_records, is_mlflow_run, located_runs
from tasks.tracking.store import refuse_foreign

FROZEN_BY = ("data.", "model.source", "rollout.max_prompt_tokens")
"""Overrides of these keys ask for other prompts than those that the run has frozen."""
ELSEWHERE: dict[str, Any] = {"tracking.uri": None, "tracking.also": []}
"""Where another run is tracked need not be ours."""
EVALUATION = "evaluation"
"""The preset of run dirs that only evaluate."""
Repair = Literal["cut"]
"""What becomes of the damaged part of a journal."""


@task(name="open-run", cache_policy=NO_CACHE)
def open_run(config: str, overrides: Mapping[str, Any], run_path: Path | None, parent: str | None = None) -> Path:
    """Return the folder of a new run with its resolved configuration; for a retry of this flow run, the folder that it has.

    With a `parent` the run is a fork of that one, and `config` is not read.

    Raises:
        ConfigError: the configuration is refused, runs code that a deployment may not run, or has more processes than there
            are slots or GPUs here.
        SamplerError: its vLLM server cannot be used.
        JournalError: the folder already holds another run, or the parent has no such step.
        TrackingError: MLflow does not hold the parent.
        FolderError: it is not ours, or a deployed flow may not write there.
    """
    with _records_of(parent) as source:
        if (earlier := earlier_attempt(run_path, "run_dir")) is not None:
            return earlier
        resolved = load_allowed(config, overrides) if source is None else _forked(str(parent), overrides, source)
        return _begin(resolved, run_path, source, None if parent else config)


def _begin(resolved: Resolved, run_path: Path | None, source: RunDir | None, config: str | None) -> Path:
    """Return the folder of a new run; `source` has the records of the run from which it is forked."""
    require_sampler([resolved.config])
    require_places([resolved.config])
    # A deployment's parameters name a file anywhere: a module beside it is not the one that the worker's owner has allowed.
    folders = () if is_deployed() else resolved.import_from or import_folders(resolved.config, config)
    origin = Origin(preset=resolved.preset, changes=resolved.changes, import_from=folders, forked_from=resolved.forked_from)
    with new_run(run_path, origin.preset, "run") as run_dir:
        for note in take_over(run_dir, resolved.config, origin, source):
            say(note)
        run_dir.create(resolved.config, origin, history=inherited_journal(run_dir, origin))
        claim(run_dir.path)
    return run_dir.path


@contextlib.contextmanager
def _records_of(parent: str | None) -> Iterator[RunDir | None]:
    """Yield where the records of a run lie: its folder, or what MLflow has of it."""
    folder = None if parent is None else folder_and_step(parent)[0]
    if folder is None or not is_mlflow_run(str(folder)):
        check_root(folder, "run")
    with contextlib.nullcontext(()) if folder is None else located_runs([str(folder)]) as found:
        yield RunDir(found[0].path) if found else None


def _forked(parent: str, overrides: Mapping[str, Any], source: RunDir) -> Resolved:
    kept = ELSEWHERE if is_mlflow_run(str(folder_and_step(parent)[0])) else {}
    resolved = fork_of(parent, {**kept, **overrides}, source)
    refuse_code([resolved.config])
    if (uri := resolved.config.tracking.uri) is not None and "tracking.uri" not in overrides:
        refuse_foreign(source, "config.json", uri)
    return resolved


@task(name="open-run", cache_policy=NO_CACHE)
def reopen_run(run_path: Path, repair: Repair | None = None, sizes: Mapping[str, int] | None = None) -> Path:
    """Return the folder of a run that continues.

    Args:
        run_path: the folder.
        repair: how a damaged journal is repaired first; None = it is refused.
        sizes: smaller sizes of passes, or other processes, to continue with, by field of `training`.

    Raises:
        JournalError: there is no training in it, one that cannot continue, or its journal is damaged.
        ConfigError: config.json was edited since the run began, a size is larger than the run's, its processes are refused, or
            there are fewer slots or GPUs here than processes.
        TrackingError: the run is tracked at an address that is not ours.
        FolderError: a deployed flow may not write there.
    """
    check_root(run_path, "run_dir")
    run_dir = RunDir(run_path)
    config = run_dir.read_config()
    if (uri := config.tracking.uri) is not None:
        refuse_foreign(run_dir, "config.json", uri)
    if repair is not None:
        repair_run(run_path)
    notes, wanted = check_resumable(run_dir), batch_limits(run_dir).applied(config)
    require_places([wanted.model_copy(update={"training": wanted.training.model_copy(update=dict(sizes or {}))})])
    if sizes:
        with hold_run(run_path):
            for change in change_passes(run_dir, sizes):
                say(change)
        notes = check_resumable(run_dir)
    for note in notes:
        say(note)
    return run_path


def repair_run(run_path: Path) -> None:
    """Make the journal of a run whole again; one that is whole stays as it is.

    Raises:
        JournalError: another process works on the run, or it cannot go back to a checkpoint.
    """
    run_dir = RunDir(run_path)
    with hold_run(run_path):
        intact = find_intact(run_dir)
        say(f"{run_dir.journal_file}: {intact.fault or 'whole, so there is nothing to repair'}")
        if intact.fault is not None:
            say(cut(run_dir, intact))


@contextlib.contextmanager
def hold_run(run_path: Path, *, is_new: bool = False) -> Iterator[None]:
    """Hold a run as `lock_run` does; a new one whose start fails is removed.

    Here every run passes, also one that is resumed, retried or from MLflow, so the code that its configuration names is refused
    here once more.

    Raises:
        ConfigError: the configuration runs code that a deployment may not run.
        JournalError: another flow works on the run, or a training that was started by hand.
        FolderError: the folder is not ours.
    """
    run_dir = RunDir(run_path)
    refuse_code([run_dir.read_config()])
    removed = remove_if_never_started(run_dir, counts=lambda error: not was_interrupted(error))
    with lock_run(run_dir, say), removed if is_new else contextlib.nullcontext():
        yield


@task(name="open-run", cache_policy=NO_CACHE)
def open_reproduction(run: str, overrides: Mapping[str, Any], run_path: Path | None) -> Path:
    """Make the folder of a run that repeats another: the same configuration, frozen prompts and seeds.

    Args:
        run: a RUN_DIR or an MLflow run id.
        overrides: what is to be another than in that run; the comparison then shows what it changes.
        run_path: folder of the repetition; None = a new one.

    Raises:
        JournalError: the run cannot be read, or the folder already holds one.
        TrackingError: MLflow does not hold the run.
        DataError: the run's frozen prompts have been changed since.
        ConfigError: an override is refused, code that a deployment may not run, or more processes than slots or GPUs here.
        FolderError: the folder is not ours, or a deployed flow may not write there.
    """
    if (earlier := earlier_attempt(run_path, "run_dir")) is not None:
        return earlier
    with new_run(run_path, "reproduction", "reproduction") as run_dir:
        original = RunDir(run_dir.original)
        _gather(run, original.path)
        flush_all(original.path)  # a manifest, a journal: each vouches for what was copied
        original.close_private_files()
        refuse_unfit(run, original)
        base, origin = original.read_config(), original.read_origin()
        named = {
            "tracking.experiment": f"{base.tracking.experiment}-reproduce",
            "tracking.run_name": f"again: {run_name(base, origin)}",
            **ELSEWHERE,
            **NOT_OF_A_SWEEP,
            **_last_processes(original, base),
        }
        config = validate_config(apply_overrides(base.model_dump(mode="json"), {**named, **overrides}))
        refuse_code([config])
        require_places([config])
        folders = recorded_folders(run, origin.import_from)
        run_dir.create(config, replace(origin, changes=changes_between(base, config), import_from=folders), "reproduction")
        if not any(key.startswith(FROZEN_BY) for key in overrides):
            copy_prompts(original, run_dir)
        claim(run_dir.path)
    changes = [f"changed: {line}" for line in config_differences(base, config)]
    changes += [f"runs code: {code}" for code in code_in(config)]  # of somebody else's run, perhaps
    sessions = (*computed_by(check_run(original).history), (config.training.processes, weight_shards(config)))
    for line in (*changes, f"the run repeats {repeatability(base, sessions).what}"):
        say(line)
    return run_dir.path


def _last_processes(original: RunDir, config: RunConfig) -> dict[str, int]:
    """Return the processes with which a run has ended, where they are not those of its configuration."""
    for processes, shards in computed_by(check_run(original).history)[-1:]:
        if (processes, shards) != (config.training.processes, weight_shards(config)):
            return {"training.processes": processes, "training.shards": shards}
    return {}


def recorded_folders(run: str, folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return from where what repeats or evaluates a run imports its reward functions; none for a deployment.

    MLflow is written by others, too: of what comes from there, only folders count into which nobody else can put a module.

    Args:
        run: as the user names it.
        folders: that its origin.json records.
    """
    if is_deployed():
        return ()
    return tuple(folder for folder in folders if not is_mlflow_run(run) or is_own_folder(Path(folder)))


def _gather(run: str, target: Path) -> None:
    """Lay out what is known of a run in `target`: all but the weights."""
    run_dir = RunDir(Path(run))
    if is_mlflow_run(run):
        tags = fetch_records(run, target).tags
        final = {"step": int(tags["policy_step"]), "digest": tags["policy_digest"]} if "policy_step" in tags else None
    else:
        with hide_contents(str(run_dir.config_file)):
            run_dir.read_config()
        load_frozen(run_dir.data)  # here, so that a message names the user's files and not the copies
        check_run(run_dir)
        policy = final_policy(run_dir)  # before the journal is copied, which then reaches it in a run that is under way, too
        final = None if policy is None else asdict(policy)
        copy_records(run_dir, RunDir(target))
    if final is not None:
        write_json(target / POLICY_FILE, final)


@task(name="open-run", cache_policy=NO_CACHE)
def open_evaluation(policy: str, config: str | None, overrides: Mapping[str, Any], run_path: Path | None) -> EvaluationPlan:
    """Find the policy, decide on its prompts and make the folder of its evaluation.

    Raises:
        ConfigError: the configuration is refused, runs code that a deployment may not run, or there is none.
        ModelError, TrackingError: the policy cannot be found.
        JournalError: the folder already holds a run.
        FolderError: it is not ours, or a deployed flow may not write there.
    """
    check_root(run_path, "run_dir")
    with new_run(run_path, EVALUATION, "evaluation") as run_dir:
        subject = subject_of_run(*fetch_policy(policy, run_dir.source)) if is_mlflow_run(policy) else find_subject(policy)
        with hide_contents(config or ""):
            base, resolved, prompts = configure_evaluation(subject, config, overrides)
        name = HELD_OUT if prompts == "own" else set_name(resolved.data.source)
        kept = {} if config is not None else ELSEWHERE
        named = {"tracking.run_name": f"{subject.name} on {name}", **kept, **NOT_OF_A_SWEEP, **overrides}
        resolved = validate_config(apply_overrides(resolved.model_dump(mode="json"), named))
        refuse_code([resolved])
        folders = recorded_folders(policy, subject.import_from) + (() if is_deployed() else import_folders(resolved, config))
        origin = Origin(preset=EVALUATION, changes=changes_between(base, resolved), import_from=folders)
        run_dir.create(resolved, origin, "evaluation")
        claim(run_dir.path)
    return EvaluationPlan(
        run_path=run_dir.path,
        policy=subject.name,
        step=subject.step,
        set_name=name,
        prompts=prompts,
        frozen_data=subject.frozen_data,
    )


@task(name="prepare-data", cache_policy=NO_CACHE)
def prepare_evaluation_data(plan: EvaluationPlan) -> DataManifest:
    """Freeze the prompts: those that the policy's own run held out, the held-out split of a configuration, or a whole source.

    Raises:
        DataError: nothing is held out.
    """
    config = RunDir(plan.run_path).read_config()
    if plan.prompts == "own":
        assert plan.frozen_data is not None
        split = replace(split_of_frozen(plan.frozen_data), train=())
    else:
        split = prompts_of(config)
        split = hold_out_all(split) if plan.prompts == "all" else replace(split, train=())
    if not split.eval:
        raise DataError("data.eval_fraction: 0 holds nothing out; give data, whose rows are then all evaluated")
    return freeze(split, config.data.source, RunDir(plan.run_path).data)


def claim(path: Path) -> None:
    """Write down that a folder is this flow run's."""
    write_whole(FlowDir(path).flow_run_file, f"{flow_run.id or ''}\n")


def earlier_attempt(given: Path | None, parameter: str) -> Path | None:
    """Return the folder that an earlier attempt of this flow run has made; None where this is the first.

    Args:
        given: the one folder that it can be; None = any below `runs/`.
        parameter: as which it was given.

    Raises:
        FolderError: a deployed flow may not write there.
    """
    check_root(given, parameter)
    if not flow_run.id or flow_run.run_count < 2:
        return None
    for path in sorted(RUNS_FOLDER.glob("*/")) if given is None else [given]:
        file = FlowDir(path).flow_run_file
        if file.exists() and file.read_text().strip() == flow_run.id:
            return path
    return None
