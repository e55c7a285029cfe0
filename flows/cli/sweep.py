"""The verb `grpo sweep`: check a sweep, plan it, run, resume or extend it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.experiment import Overrides, complete_sweep, run_path
from flows.cli.run import begun, working_in, working_in_new
from flows.stack.servers import TrackingUri, track_at, use_stack
from flows.terminal import echo, echo_result, echo_text
from grpo_core.config import parse_overrides
from grpo_core.errors import ConfigError
from grpo_core.run.child import import_folders
from grpo_core.run.flow_folder import RUNS_FOLDER
from grpo_core.sweep.description import describe_plan
from grpo_core.sweep.extension import extended
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.plan import Plan, load_sweep

if TYPE_CHECKING:
    from tasks.sweep.stages import SweepSummary

SweepName = Annotated[
    str | None,
    typer.Argument(
        help="A file in configs/sweeps/ by name, or a path.", metavar="FILE", show_default=False, autocompletion=complete_sweep
    ),
]
RESUMED = "Resume this sweep. No FILE is given then."
ResumedSweep = Annotated[Path | None, typer.Option(help=RESUMED, parser=run_path, metavar="SWEEP")]
ADDED = "Add to this sweep: seeds=[0,1,2,3], axes.loss.beta=[0.1,1,4], trials=30."
ExtendedSweep = Annotated[Path | None, typer.Option(help=ADDED, parser=run_path, metavar="SWEEP")]
PLAN = (
    "Print the smallest differences that the sweep can show, what more seeds, samples or prompts would buy, and its cost. "
    "Without --pilot, 2 settings run with 2 seeds first; nothing else does."
)
PILOT = "With --plan: finished runs, a folder of them or a sweep, in the place of a pilot; may be given several times."
PilotRuns = Annotated[list[Path] | None, typer.Option(help=PILOT, parser=run_path, metavar="FOLDER")]
DETECT = "With --plan: print how many seeds establish such a difference."


def sweep(
    file: SweepName = None,
    overrides: Overrides = None,
    *,
    sweep_dir: Annotated[Path | None, typer.Option(help="Folder of the sweep; a new one under runs/ if left out.")] = None,
    resume: ResumedSweep = None,
    extend: ExtendedSweep = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume or --extend: run failed runs once more.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--check", help="Check the sweep and print its settings; run nothing.")] = False,
    wants_plan: Annotated[bool, typer.Option("--plan", help=PLAN)] = False,
    pilot: PilotRuns = None,
    detect: Annotated[float | None, typer.Option(min=1e-9, help=DETECT)] = None,
    tracking_uri: TrackingUri = None,
) -> None:
    """Run every setting of a sweep once per seed and report which differ: the flow `grpo-sweep`."""
    if (folder := extend or resume) is not None:
        track_at(tracking_uri)
        # Without a FILE the first override stands in its place.
        asked = {"--plan": wants_plan, "--pilot": pilot, "--detect": detect, "--check": dry_run}
        flags = [option for option, value in asked.items() if value]
        given = [one for one in (*flags, file, sweep_dir, *([resume] if extend else []), *(overrides or [])) if one is not None]
        _resume_sweep(folder, retry_failed, given, is_extended=extend is not None)
        return
    values = parse_overrides(overrides or [])
    file = begun(file, {"--retry-failed": retry_failed, "--tracking-uri": tracking_uri})
    plan = load_sweep(file, values)  # refused before anything is made or started
    if dry_run:
        from grpo_core.sweep.status import training_time

        echo_text("\n".join([*describe_plan(plan), training_time(plan)]))
        return
    if wants_plan:
        _plan(plan, sweep_dir.parent if sweep_dir else RUNS_FOLDER, Path(file).stem, pilot, detect)
        return
    if pilot or detect:
        raise ConfigError(f"{'--pilot' if pilot else '--detect'}: belongs to --plan; give that, too")
    _require_runs(plan)
    with working_in_new(sweep_dir, Path(file).stem, "sweep") as folder:
        use_stack()
        from flows.sweep import grpo_sweep

        _show_sweep(grpo_sweep(sweep=file, overrides=values, sweep_dir=str(folder)))


def _plan(plan: Plan, beside: Path, name: str, given: list[Path] | None, detect: float | None) -> None:
    """Print the plan of a sweep and write it beside its folder; where no runs are named, make a pilot or take the one there."""
    from grpo_core.sweep.pilot import pilot_file, read_pilot
    from grpo_core.sweep.planning import describe, plan_file, write_plan

    if plan.sweep.sampler != "grid":
        raise ConfigError(f"sampler: {plan.sweep.sampler} chooses its settings as it goes; --plan takes sampler grid")
    beside.mkdir(parents=True, exist_ok=True)
    folders = given or [_pilot(pilot_file(plan, beside / f"{name}-pilot.yaml"))]
    pilot, file = read_pilot(folders, plan.sweep.objective), plan_file(beside, name)
    echo_text("\n".join(describe(plan, pilot, detect)))
    write_plan(file, plan, pilot, detect)
    echo(f"{'plan':10}{file}, which `grpo sweep` keeps in the sweep's folder before the first run")


def _pilot(pilot: SweepDir) -> Path:
    """Run what is left to run of a pilot, and return its folder."""
    from grpo_core.sweep.status import sweep_status

    file = f"{pilot.path}.yaml"
    if not pilot.sweep_file.exists() or sweep_status(pilot).resume:
        _require_runs(load_sweep(file))
        with working_in(pilot.path):
            use_stack()
            from flows.sweep import grpo_sweep, resume_sweep

            if pilot.sweep_file.exists():
                resume_sweep(sweep_dir=str(pilot.path), retry_failed=True)
            else:
                grpo_sweep(sweep=file, overrides={}, sweep_dir=str(pilot.path))
        echo()
    return pilot.path


def _require_runs(plan: Plan, folders: tuple[str, ...] = ()) -> None:
    """Refuse a sweep of this machine whose runs cannot start here: one for each model, data, rollout and rewards is checked."""
    from grpo_core.run.fit import require_places
    from grpo_core.run.preflight import require_start

    if plan.sweep.runs.where == "local":
        require_places(plan.configs)
        kinds = {repr((c.model, c.data, c.rewards, c.training.python, c.rollout)): c for c in plan.configs}
        for config in kinds.values():
            require_start(config, folders or import_folders(config, plan.sweep.base))


def _resume_sweep(sweep_dir: Path, retry_failed: bool, given: list[str | Path], *, is_extended: bool) -> None:
    stored = SweepDir(sweep_dir).read()  # refused before anything is started
    texts = [value for value in given if isinstance(value, str) and "=" in value]
    if other := [value for value in given if not is_extended or value not in texts]:
        way = f"; `grpo sweep --extend {sweep_dir} '{texts[0]}'` adds to it" if texts and not is_extended else ""
        raise ConfigError(f"--resume {sweep_dir}: the sweep keeps its own settings; leave out {other[0]}{way}")
    changes = parse_overrides(texts)
    if changes:
        _require_runs(extended(stored, changes).plan, stored.import_from)
    with working_in(sweep_dir):
        use_stack()
        from flows.sweep import resume_sweep

        _show_sweep(resume_sweep(sweep_dir=str(sweep_dir), retry_failed=retry_failed, extend=changes))


def _show_sweep(summary: "SweepSummary") -> None:
    echo()
    counts = ", ".join(f"{count} {status}" for status, count in summary.statuses.items())
    places = (("runs", counts), ("report", str(summary.page)), *summary.tracked.places)
    echo_result(summary.answer, places, summary.problems)
