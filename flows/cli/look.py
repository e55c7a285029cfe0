"""The verbs of the `grpo` command that only look: at a configuration, at a run, at the stack, at a folder of runs."""

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.completion import ConfigName, Overrides
from flows.cli.stack import StackFolder
from flows.stack.servers import folder_here
from flows.terminal import AsJson, echo, echo_json, echo_text, echo_warnings
from grpo_core.config import RunConfig, check_consistency, load_config, parse_overrides
from grpo_core.config.derived import advantage_rms_factor, repeatability, weight_of_kl
from grpo_core.config.loading import dump_yaml
from grpo_core.errors import ConfigError, listed, name_of
from grpo_core.run.flow_folder import RUNS_FOLDER

if TYPE_CHECKING:
    from grpo_core.run.memory import Fit
    from grpo_core.run.preflight import AdapterSummary
    from grpo_core.sweep.status import Listed

SHOWN_METRICS = ("reward/mean", "kl/ref/drift", "kl/init/drift", "policy/entropy", "time/step_seconds")


DeviceMemory = Annotated[
    float | None,
    typer.Option(
        "--device-memory", min=1, max=1_000_000, help="GB of a GPU that is not here; left out: this machine's device."
    ),
]


def check(config: ConfigName, overrides: Overrides = None, as_json: AsJson = False, device_memory: DeviceMemory = None) -> None:
    """Print the resolved configuration, the memory that a step needs, and all that is wrong, without loading a model.

    Data, model, reward functions and disk are those of this machine, and are not looked at with --device-memory.
    """
    from grpo_core.rewards.base import reward_notes
    from grpo_core.run.child import import_folders
    from grpo_core.run.preflight import check_elsewhere, check_start, slow_dtype_warnings

    resolved = load_config(config, parse_overrides(overrides or []))
    is_here = device_memory is None
    if device_memory is None:
        found = check_start(resolved, import_folders(resolved, config))
    else:
        found = check_elsewhere(resolved, int(device_memory * 1e9))
    slow = slow_dtype_warnings(resolved) if is_here else ()
    notes = (*reward_notes(resolved), *found.notes)
    fit, adapter = found.fit, found.adapter
    faults, warnings = found.faults, (*check_consistency(resolved), *slow, *found.warnings)
    if as_json:
        derived = {
            "advantage_rms_factor": advantage_rms_factor(resolved),
            "effective_beta": weight_of_kl(resolved),
            "repeats": repeatability(resolved).what,
            "adapter": None if adapter is None else asdict(adapter),
            "memory": None if fit is None else fit.as_json(),
        }
        echo_json(
            {"config": resolved.model_dump(mode="json"), **derived, "notes": notes, "warnings": warnings, "faults": faults}
        )
        if faults:
            raise typer.Exit(ConfigError.exit_code)
        return
    echo_text(dump_yaml(resolved.model_dump(mode="json")).rstrip())
    _show_derived(resolved, adapter, fit)
    for note in notes:
        echo(f"note: {note}")
    echo_warnings(warnings, err=False)
    whether = f", {'but the run cannot' if faults else 'and the run can'} start here" if is_here else ""
    echo(f"{len(warnings)} warning(s); the configuration is valid{whether}")
    if faults:
        raise ConfigError(listed(faults))


def _show_derived(config: RunConfig, adapter: "AdapterSummary | None", fit: "Fit | None") -> None:
    factor = advantage_rms_factor(config)
    meaning = f"{factor:.4f}  (root mean square of a group's advantages)" if factor else "not that of a group alone"
    echo()
    echo(f"advantage_rms_factor: {meaning}")
    echo(f"effective beta: {weight_of_kl(config)}")
    echo(f"repeats: {repeatability(config).what}")
    from grpo_core.policy.sources.find import model_here

    is_here = model_here(config.model.source) is not None
    unknown = f"not known: {'its formulas are for other layers than the model has' if is_here else 'the model is not here'}"
    if config.model.lora is not None:
        echo(f"adapter: {adapter or ('no layer gets one' if is_here else f'its size is {unknown}')}")
    echo(f"memory of tensors: {fit or unknown}")
    if fit is not None:
        echo(f"  states = {fit.states_formula}; docs/memory.md has the other formulas")


def status(
    run_dir: Annotated[Path | None, typer.Argument(help="Folder of a run or sweep; left out: the local stack.")] = None,
    folder: StackFolder = None,
    as_json: AsJson = False,
) -> None:
    """Print where a run or sweep is and how it is resumed, or how the local stack is."""
    if run_dir is None:
        _show_stack(folder or folder_here(), as_json)
    elif (run_dir / "sweep.json").exists():
        _show_sweep(run_dir, as_json)
    else:
        _show_run(run_dir, as_json)


def _show_stack(folder: Path, as_json: bool) -> None:
    import httpx

    from flows.stack.prefect_api import count_flow_runs
    from flows.stack.services import conditions
    from flows.stack.state import prefect_client, read_stack
    from tasks.credentials import mlflow_page

    stack = read_stack(folder)
    if stack is None:
        if as_json:
            echo_json({"folder": str(folder), "services": [], "runs": None})
        else:
            echo(f"nothing is up in {folder}; start it with `grpo up`")
        raise typer.Exit(1)
    found = conditions(stack)
    counts = None
    with contextlib.suppress(httpx.HTTPError), prefect_client(stack) as client:
        counts = count_flow_runs(client)
    pages = {"prefect": stack.prefect_address, "mlflow": mlflow_page(stack.mlflow_address)}
    if as_json:
        services = [
            {"name": name, "condition": condition, "pid": pid, "address": pages.get(name)}
            for name, (condition, pid) in found.items()
        ]
        echo_json({"folder": str(folder), "services": services, "runs": counts})
    else:
        for name, (condition, pid) in found.items():
            echo(f"{name:8} {condition:10} process {pid or '-':<8} {pages.get(name, '')}")
        known = ", ".join(f"{count} {state.lower()}" for state, count in (counts or {}).items()) or "none under way"
        echo(f"runs     {'not known: Prefect does not answer' if counts is None else known}")
    if {condition for condition, _ in found.values()} != {"ready"}:
        echo("`grpo up` starts what is missing", err=as_json)
        raise typer.Exit(1)


def _show_run(run_dir: Path, as_json: bool) -> None:
    from grpo_core.run.folder import RunDir
    from grpo_core.run.summary import run_status
    from grpo_core.sweep.status import command_that_resumes

    now, resume = run_status(RunDir(run_dir)), command_that_resumes(run_dir)
    if as_json:
        last = {"step": now.last.step, "time": now.last.time, "metrics": dict(now.last.metrics)} if now.last else None
        echo_json({"run_dir": str(run_dir), **asdict(now), "last": last, "resume": resume})
        return
    echo(f"{run_dir}: {now.state}, step {now.step} of {now.steps}, {now.num_syncs} reference sync(s)")
    if now.reason:
        echo(f"reason: {now.reason}")
    if now.last is not None:
        echo(f"last record: {now.last.time}")
        for key in SHOWN_METRICS:
            if key in now.last.metrics:
                echo(f"  {key:20} {now.last.metrics[key]:.4g}")
    for line in (*(f"alert: {alert}" for alert in now.alerts), *now.notes):
        echo(line)
    _show_resume(resume)


def _show_sweep(sweep_dir: Path, as_json: bool) -> None:
    from grpo_core.sweep.folder import SweepDir
    from grpo_core.sweep.status import sweep_status

    now = sweep_status(SweepDir(sweep_dir))
    if as_json:
        echo_json({"sweep_dir": str(sweep_dir), **asdict(now)})
        return
    under_way = f", {now.under_way} begun" if now.under_way else ""
    counts = "".join(f", {count} {outcome}" for outcome, count in now.outcomes.items())
    echo(f"{sweep_dir}: {now.state}, {now.ended} of {now.total} runs have ended{counts}{under_way}")
    _show_resume(now.resume)


def _show_resume(command: str | None) -> None:
    from flows.cli.folders import RESUME

    if command is not None:
        echo(f"{RESUME}{command}")


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder of runs, or of one sweep.")] = RUNS_FOLDER, as_json: AsJson = False
) -> None:
    """List runs and sweeps, the newest first: state, steps done (a sweep's: runs), best held-out accuracy, size, start."""
    from grpo_core.sweep.status import list_folders

    if not folder.is_dir() and folder != RUNS_FOLDER:
        raise ConfigError(f"{name_of(str(folder), 300)}: is no folder; give the folder of runs, or of one sweep")
    listed = list_folders(folder)
    if as_json:
        echo_json([_as_values(entry) for entry in listed])
        return
    if not listed:
        echo(f"no runs in {folder}")
        return
    rows = [("FOLDER", "STATE", "PRESET", "DONE", "BEST ACCURACY", "SIZE", "STARTED"), *map(_cells, listed)]
    for line in _aligned(rows):
        echo(line)
    for entry in listed:
        if entry.fault is not None:
            echo(f"{entry.path}: {entry.fault}", err=True)


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cells(entry: "Listed") -> tuple[str, ...]:
    from grpo_core.run.sizes import shown_bytes
    from grpo_core.text import visible

    done = "" if entry.fault is not None or not entry.total else f"{entry.done}/{entry.total}"
    runs_of = " runs" if entry.kind == "sweep" and done else ""
    return (
        visible(str(entry.path)),
        visible(entry.state),
        visible(f"{entry.preset} (sweep)" if entry.kind == "sweep" else entry.preset),
        f"{done}{runs_of}",
        "" if entry.accuracy is None else f"{entry.accuracy:.3f}",
        shown_bytes(entry.bytes),
        entry.started.astimezone().strftime("%Y-%m-%d %H:%M"),
    )


def _as_values(entry: "Listed") -> dict[str, Any]:
    return {**asdict(entry), "path": str(entry.path), "started": entry.started.isoformat()}
