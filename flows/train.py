"""Flow "grpo": prepare data and model, evaluate, train while being monitored, evaluate again, report.

open_run - open_tracking - prepare_data - prepare_model - evaluate(base) - train | monitor - evaluate(final) - report

Each of them leaves what it did in the run's folder and does nothing twice, so that a run that was interrupted, anywhere and
however, is resumed by running it again: by `resume`, or by a retry of the same flow run. The flow "grpo-reproduce" does the
same with the configuration, prompts and seeds that were recorded of a run; its report compares every figure that must be equal.
"""

from dataclasses import replace
from pathlib import Path

from prefect import flow

from flows.prefect_pages import (
    NAME_KEY,
    NO_OVERRIDES,
    Config,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    Overrides,
    PositiveInt,
    form,
    show_run,
)
from flows.signals import ends_when_asked
from grpo_core.config import merge_knobs
from grpo_core.config.loading import KNOBS
from tasks.process.child import evaluate_policy, release_monitor, run_training_process
from tasks.run.inputs import check_machine, prepare_data, prepare_model
from tasks.run.monitoring import monitor
from tasks.run.reporting import RunSummary, conclude, report_run
from tasks.run.setup import Repair, hold_run, open_reproduction, open_run, reopen_run
from tasks.tracking import end_tracking, open_tracking, track_inputs, track_results


@form
@flow(name="grpo", flow_run_name="{config}")
def grpo(
    *,
    config: Config = "quickstart",
    beta: NonNegativeFloat | None = None,
    group_size: PositiveInt | None = None,
    ref_sync_steps: NonNegativeInt | None = None,
    seed: NonNegativeInt | None = None,
    overrides: Overrides = NO_OVERRIDES,
    name: Name | None = None,
    run_dir: str | None = None,
) -> RunSummary:
    """Train a policy with GRPO and report the result.

    Start from a preset and change what you want to compare: beta, group size, reference sync steps, seed, or any other key as
    an override. A key that is left out keeps the preset's value; one that is given twice is refused.

    Args:
        config: A preset (a file in `configs/`), or the path of a YAML file.
        beta: `loss.beta`, the weight of the KL term. 0 = no KL in the loss; it is measured all the same.
        group_size: `rollout.group_size`, G: completions of one prompt.
        ref_sync_steps: `reference.sync_steps`: the reference becomes the policy every so many steps. 0 = never.
        seed: `training.seed`, of prompt order and sampling.
        overrides: Any other keys, for example {"training.steps": 20, "optimizer.lr": 2e-6}.
        name: `tracking.run_name`, in Prefect and MLflow; left out, one of what is swept or overridden.
        run_dir: Folder of the run; left out, a new one under `runs/`.
    """
    knobs = {"beta": beta, "group_size": group_size, "ref_sync_steps": ref_sync_steps, "seed": seed, "name": name}
    values = merge_knobs(knobs, overrides, {**KNOBS, **NAME_KEY})
    return run_training(open_run(config, values, Path(run_dir) if run_dir else None), is_new=True)


@form
@flow(name="grpo", flow_run_name="{run}, forked")
def grpo_fork(
    *,
    run: Name,
    at: PositiveInt | None = None,
    overrides: Overrides = NO_OVERRIDES,
    name: Name | None = None,
    run_dir: str | None = None,
) -> RunSummary:
    """Fork a run: a new one that is the same up to a step, and goes on from there with what you change.

    Random numbers are the parent's, so the difference is what the change has done. Without a change the fork is its parent,
    bit for bit; with more `training.steps` it is the parent, trained on.

    Args:
        run: A run dir, or an MLflow run id.
        at: The step after which it goes on; left out, that of the newest checkpoint.
        overrides: Keys to change, for example {"loss.beta": 0.1} or {"training.steps": 120}.
        name: `tracking.run_name`, in Prefect and MLflow; left out, one of what is swept or overridden.
        run_dir: Folder of the fork; left out, a new one under `runs/`.
    """
    values, parent = merge_knobs({"name": name}, overrides, NAME_KEY), run if at is None else f"{run}@{at}"
    return run_training(open_run("", values, Path(run_dir) if run_dir else None, parent), is_new=True)


@form
@flow(name="grpo", flow_run_name="{run_dir}, resumed")
def resume(
    *,
    run_dir: Name,
    repair: Repair | None = None,
    microbatch_tokens: PositiveInt | None = None,
    rollout_rows: PositiveInt | None = None,
    processes: PositiveInt | None = None,
    shards: PositiveInt | None = None,
) -> RunSummary:
    """Resume a run that was interrupted from its newest checkpoint, as if it had never stopped.

    Configuration, data and MLflow run are its own. Steps beyond the checkpoint are repeated and compared with what the journal
    says of them. A run that has reached its last step is evaluated and reported again where that is missing.

    Args:
        run_dir: Folder of the run.
        repair: What to do about a damaged journal; left out, it is refused. cut = go back to the last checkpoint that its
            whole part reaches.
        microbatch_tokens: A smaller `training.microbatch_tokens`, where the run was out of memory.
        rollout_rows: A smaller `training.rollout_rows`, where the run was out of memory.
        processes: Another `training.processes`, on more or fewer GPUs.
        shards: Another `training.shards`, over how many of them the weights are spread; left out, as before.
    """
    sizes = {"microbatch_tokens": microbatch_tokens, "rollout_rows": rollout_rows, "processes": processes, "shards": shards}
    return run_training(reopen_run(Path(run_dir), repair, {key: value for key, value in sizes.items() if value is not None}))


@form
@flow(name="grpo-reproduce", flow_run_name="{run} again")
def grpo_reproduce(
    *, run: Name, overrides: Overrides = NO_OVERRIDES, name: Name | None = None, run_dir: str | None = None
) -> RunSummary:
    """Repeat a run and report, step by step, whether it is identical.

    What differs in the environment (code, versions, processor, threads) is listed before anything starts.

    Args:
        run: A run dir, or an MLflow run id.
        overrides: Keys to change, for example {"training.seed": 1}: the comparison shows what that changes.
        name: `tracking.run_name`, in Prefect and MLflow; left out, one of what is repeated.
        run_dir: Folder of the repetition; left out, a new one under `runs/`.
    """
    run_path = open_reproduction(run, merge_knobs({"name": name}, overrides, NAME_KEY), Path(run_dir) if run_dir else None)
    return run_training(run_path, is_new=True)


@ends_when_asked
def run_training(run_path: Path, *, is_new: bool = False) -> RunSummary:
    """Do what is left to do of the run in a folder; where a new one fails before anything has run, nothing is left of it."""
    with hold_run(run_path, is_new=is_new):
        show_run(run_path, is_new=is_new)
        tracked = open_tracking(run_path)
        with end_tracking(run_path, tracked):
            data = prepare_data(run_path)
            model = prepare_model(run_path, data)
            check_machine(run_path, tracked, model)
            track_inputs(run_path, tracked)
            kept = evaluate_policy(run_path, "base")
            watching = monitor.submit(run_path, tracked)
            try:
                run_training_process(run_path, kept)
            finally:
                release_monitor(run_path)
                watching.wait()
            alerts = watching.result()
            evaluate_policy(run_path, "final")
            summary = report_run(run_path, tracked, alerts)
            return conclude(replace(summary, problems=track_results(run_path, tracked, "FINISHED")))
