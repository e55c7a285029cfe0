"""The verbs of the `grpo` command about what has run: list, look, show, why, report, compare, track, export, clean."""

import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from flows.cli.experiment import run_path
from flows.cli.run import RESUME
from flows.cli.stack import StackFolder, show_stack
from flows.stack.servers import TrackingUri, track_at
from flows.terminal import AsJson, echo, echo_json, echo_places, echo_result, echo_warnings, messages_to_stderr
from grpo_core.config.section import refuse_credentials
from grpo_core.errors import ConfigError, few_names, name_of
from grpo_core.machine.process import gc_paused
from grpo_core.run.flow_folder import RUNS_FOLDER, make_folder, named_folder
from grpo_core.run.folder import RunDir
from grpo_core.run.sizes import shown_bytes
from grpo_core.sweep.folder import SweepDir
from grpo_core.text import visible

if TYPE_CHECKING:
    from grpo_core.compare.comparison import RunComparison
    from grpo_core.sweep.status import Listed

SHOWN_METRICS = ("reward/mean", "kl/ref/drift", "kl/init/drift", "policy/entropy", "time/step_seconds")
MOST_GROUPS = 10
COMPARISONS = Path("runs/comparisons")
"""Where comparisons are written unless another folder is given."""


Column = Literal["id", "state", "settings", "done", "accuracy", "reward", "alerts", "size", "started", "folder"]
FIELDS = {"id": "number", "settings": "name", "size": "bytes", "folder": "path"}
"""Columns of the list of runs that are called otherwise in it."""


def runs(
    wanted: Annotated[
        list[str] | None,
        typer.Argument(
            help="A folder of runs, or a sweep; beta=0.1, sync=10, state=finished, any key=value.", metavar="[WANTED]..."
        ),
    ] = None,
    *,
    sort: Annotated[Column | None, typer.Option(help="Column to sort by, the highest first; left out, by the start.")] = None,
    as_json: AsJson = False,
) -> None:
    """List runs and sweeps, the newest first, with the number by which every command takes them.

    Of a sweep: its runs, and the accuracy and reward of the best of them.
    """
    from grpo_core.sweep.status import list_folders

    words = [word for word in wanted or () if "=" in word and not Path(word).exists()]
    folder, *others = [run_path(word) for word in wanted or () if word not in words] or [RUNS_FOLDER]
    if others:
        raise ConfigError(f"{others[0]}: one folder is listed, {folder}; what else is wanted is key=value, such as beta=0.1")
    _require_folder(folder)
    listed = list_folders(folder, words)
    if sort is not None:
        field = FIELDS.get(sort, sort)
        cells = ((getattr(entry, field), entry) for entry in listed)
        listed = [entry for _, entry in sorted(cells, key=lambda cell: (cell[0] is not None, cell[0]), reverse=True)]
    if as_json:
        echo_json([{**asdict(one), "path": str(one.path), "started": one.started.isoformat()} for one in listed])
    elif not listed:
        echo(f"no runs in {folder}")
    else:
        # A number is one of `runs/` alone.
        first = 0 if folder == RUNS_FOLDER else 1
        rows = [row[first:] for row in (tuple(column.upper() for column in get_args(Column)), *map(_cells, listed))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        for entry in listed:
            if entry.fault is not None:
                echo(f"{entry.path}: {entry.fault}", err=True)


def _require_folder(folder: Path) -> None:
    """Before the first run there is no `runs/`."""
    if not folder.is_dir() and folder != RUNS_FOLDER:
        raise ConfigError(f"{name_of(str(folder), 300)}: is no folder; give the folder of runs, or of one run or sweep")


def _cells(entry: "Listed") -> tuple[str, ...]:
    of_sweep = entry.kind == "sweep"
    done = f"{entry.done}/{entry.total}{' runs' if of_sweep else ''}" if entry.fault is None and entry.total else ""
    before, after = ("" if one is None else f"{one:.3f}" for one in (entry.accuracy_before, entry.accuracy))
    return (
        str(entry.number or ""),
        entry.state,
        visible(f"{entry.preset} (sweep)" if of_sweep else entry.name or entry.preset),
        done,
        f"{before} -> {after or '...'}" if before else after,
        "" if entry.reward is None else f"{entry.reward:.3f}",
        str(entry.alerts or ""),
        shown_bytes(entry.bytes),
        entry.started.astimezone().strftime("%Y-%m-%d %H:%M"),
        visible(str(entry.path)),
    )


def status(
    run_dir: Annotated[
        Path | None, typer.Argument(help="A run or sweep; left out: the local stack.", parser=run_path, metavar="RUN")
    ] = None,
    folder: StackFolder = None,
    as_json: AsJson = False,
) -> None:
    """Print where a run or sweep is and how it is resumed, or how the local stack is."""
    if run_dir is None:
        show_stack(folder, as_json)
    elif SweepDir(run_dir).sweep_file.exists():
        _show_sweep(run_dir, as_json)
    else:
        _show_run(run_dir, as_json)


def _show_run(run_dir: Path, as_json: bool) -> None:
    from grpo_core.run.summary import run_status
    from grpo_core.sweep.status import command_that_resumes

    now, resume = run_status(RunDir(run_dir)), command_that_resumes(run_dir)
    metrics = dict(now.last.metrics) if now.last else {}
    if as_json:
        last = {"step": now.last.step, "time": now.last.time, "metrics": metrics} if now.last else None
        echo_json({"run_dir": str(run_dir), **asdict(now), "last": last, "resume": resume})
        return
    echo(f"{run_dir}: {now.state}, step {now.step} of {now.steps}, {now.num_syncs} reference sync(s)")
    lines = [
        *([f"reason: {now.reason}"] if now.reason else []),
        *([f"last record: {now.last.time}"] if now.last else []),
        *(f"  {key:20} {metrics[key]:.4g}" for key in SHOWN_METRICS if key in metrics),
        *(f"warning: {warning}" for warning in now.warnings),
        *(f"alert: {alert}" for alert in now.alerts),
        *now.notes,
        *([f"{RESUME}{resume}"] if resume else []),
    ]
    for line in lines:
        echo(line, fg="yellow" if line.startswith(("alert: ", "warning: ")) else None)


def _show_sweep(sweep_dir: Path, as_json: bool) -> None:
    from grpo_core.sweep.status import sweep_status

    now = sweep_status(SweepDir(sweep_dir))
    if as_json:
        echo_json({"sweep_dir": str(sweep_dir), **asdict(now)})
        return
    under_way = f", {now.under_way} begun" if now.under_way else ""
    counts = "".join(f", {count} {outcome}" for outcome, count in now.outcomes.items())
    echo(f"{sweep_dir}: {now.state}, {now.ended} of {now.total} runs have ended{counts}{under_way}")
    if now.resume is not None:
        echo(f"{RESUME}{now.resume}")


def report(
    folder: Annotated[Path, typer.Argument(help="A sweep or a run, finished or not.", parser=run_path, metavar="RUN")],
    as_json: AsJson = False,
    tracking_uri: TrackingUri = None,
) -> None:
    """Write the page of a run, or the report of a sweep, from their journals, and upload it to MLflow."""
    track_at(tracking_uri)
    is_run = RunDir(folder).config_file.is_file()
    with messages_to_stderr(as_json):
        with gc_paused():
            from tasks.run.reporting import report_run_again
            from tasks.sweep.stages import report_again
        page, answer, problems = report_run_again(folder) if is_run else report_again(folder)
    if as_json:
        where = {"run_dir" if is_run else "sweep_dir": str(folder)}
        echo_json({**where, "report": str(page), "answer": answer, "problems": problems})
    else:
        echo_result(answer, [("page" if is_run else "report", str(page))], problems)


def samples(
    run_dir: Annotated[Path, typer.Argument(help="A run, finished or not.", parser=run_path, metavar="RUN")],
    *,
    step: Annotated[int | None, typer.Option(min=1, help="The last step that was kept if left out.")] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only completions that are wrong.")] = False,
) -> None:
    """Print what the model wrote in a step: ten prompts, their gold answers, and each completion with its reward."""
    from grpo_core.run.samples import kept_steps, read_groups

    run = RunDir(run_dir)
    run.read_config()  # refuses what is no run
    kept = kept_steps(run)
    if not kept or step not in (None, *kept):
        raise ConfigError(f"--step {step}: not kept (training.completions_every); these steps were: {few_names(kept, 20)}")
    groups = read_groups(run, step or kept[-1])
    found = [group for group in groups if not wrong or any(one.is_right is False for one in group.completions)]
    echo(f"step {step or kept[-1]}: {min(len(found), MOST_GROUPS)} of {len(groups)} prompts")
    for group in found[:MOST_GROUPS]:
        echo()
        echo("   ".join(filter(None, [group.end, group.answer and f"gold {group.answer}", group.verdict])))
        for digest in group.images:
            file = run.images / digest
            echo(f"     image {file}{'' if file.is_file() else ' (missing)'}")
        lines = [
            (one.is_right, f"{one.line}   {one.tokens} tok · r {one.reward:.3g} · A {one.advantage:.2g}")
            for one in group.completions
            if not (wrong and one.is_right)
        ]
        for (is_right, line), count in Counter(lines).items():
            echo(f"{count:4} {line}", fg={True: "green", False: "red", None: None}[is_right])


def why(run: Annotated[Path, typer.Argument(help="A run, finished or not.", parser=run_path, metavar="RUN")]) -> None:
    """Print when a run went wrong, which figure moved first, its worst tokens, and completions before and after."""
    from grpo_core.run.curves import Run
    from grpo_core.run.why import explain

    for line in explain(Run(run)):
        echo(line)


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(help="Runs, sweeps (all of their runs), or MLflow run ids.", parser=named_folder, metavar="RUN..."),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the page and tables; a new one under runs/comparisons/ if left out."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put several runs side by side: figures, curves, what each wrote, what differs; of one run, write its own page.

    Exit code 1 if one of them cannot be read, 2 if none can.
    """
    for name in runs:
        refuse_credentials("RUN", name)
    from grpo_core.compare.comparison import compare_sources
    from grpo_core.compare.page import write_comparison
    from tasks.tracking.fetch import located_runs

    with messages_to_stderr(as_json), located_runs(runs) as given:
        comparison = compare_sources(given)
        echo_warnings([*(f"not compared: {name}: {why}" for name, why in comparison.unread.items()), *comparison.notes])
        if not as_json:
            _show_compared(comparison)
            page = _own_page(comparison) if out is None else None
            echo(str(page or write_comparison(comparison, out or _new_folder(comparison))))
        elif out is not None:
            write_comparison(comparison, out)
    if as_json:
        echo_json(comparison.document)
    if comparison.unread:
        raise typer.Exit(1)


def _own_page(comparison: "RunComparison") -> Path | None:
    """Return the page of the only run, written if the run has not done so; None where there are several, or it is not here."""
    from grpo_core.run_page.page import write_page

    first, *others = comparison.runs
    if others or first.source.is_downloaded:
        return None
    if not first.run.dir.page.exists():
        write_page(first.run.dir)
    return first.run.dir.page


def _new_folder(comparison: "RunComparison") -> Path:
    from grpo_core.compare.page import ComparisonDir, comparison_name

    folder = make_folder(comparison_name(comparison), COMPARISONS)
    ComparisonDir(folder).mark("comparison")
    return folder


def _show_compared(comparison: "RunComparison") -> None:
    for compared in comparison.runs:
        run = compared.run
        echo(f"  {compared.label}: {run.state}, step {run.last_step} of {run.config.training.steps}, {compared.source.place}")
    for found in comparison.firsts:
        if found.shared_steps == 0:
            echo(f"  {found.label}: no shared step with {found.against}")
        elif found.first is None:
            echo(f"  {found.label}: every figure of {found.shared_steps} shared steps is that of {found.against}")
        else:
            echo(f"  {found.label}: differs from {found.against} since step {found.first.step} ({found.first.key})")
    echo()


def track(
    run_dir: Annotated[Path, typer.Argument(help="A run that has ended.", parser=run_path, metavar="RUN")],
    tracking_uri: TrackingUri = None,
) -> None:
    """Ship to MLflow what an outage or a cancellation left behind; each figure once, however often this is done."""
    from tasks.tracking.training import track_later

    track_at(tracking_uri)
    tracked, status, problems = track_later(run_dir)
    echo(f"{tracked.name}: {status}")
    echo_places(tracked.places)
    echo_warnings(problems)
    if problems:
        raise typer.Exit(1)


def export(
    run: Annotated[
        str,
        typer.Argument(help="A run, or an MLflow run id whose run is on this machine.", parser=named_folder, metavar="RUN"),
    ],
    *,
    step: Annotated[int | None, typer.Option(min=1, help="The checkpoint after this step; the newest if left out.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The checkpoint with the best held-out accuracy.")] = False,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="The LoRA adapter alone: the default where one was trained.")
    ] = False,
    merged: Annotated[bool, typer.Option("--merged", help="All weights, those of an adapter added to its base.")] = False,
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="Of merged weights.")] = "float32",
    to: Annotated[
        Path | None,
        typer.Option(help="Folder of the export; one under runs/exports/, named after run, step and form, if left out."),
    ] = None,
    register: Annotated[
        str | None, typer.Option(help="Registered model in MLflow that the export becomes a version of.")
    ] = None,
    as_json: AsJson = False,
    tracking_uri: TrackingUri = None,
) -> None:
    """Write a folder that transformers, PEFT, vLLM and TRL load, with a model card; the flow `grpo-export` does the same.

    An earlier export in the folder is replaced if nobody has changed it; anything else is refused.
    """
    if adapter and merged:
        raise ConfigError("--adapter and --merged: each is a form of the export; give one of them")
    refuse_credentials("RUN", run)
    track_at(tracking_uri)
    with messages_to_stderr(as_json):
        with gc_paused():
            from grpo_core.export.choice import ExportWish
            from tasks.tracking.exporting import export_run

        form: Literal["adapter", "merged"] | None = "adapter" if adapter else "merged" if merged else None
        summary = export_run.fn(run, ExportWish(step=step, best=best, form=form, dtype=dtype), to, register)
    if as_json:
        echo_json({**asdict(summary), "folder": str(summary.folder), "places": dict(summary.places)})
    else:
        echo_result(summary.facts, summary.places, summary.notes)


def clean(
    folder: Annotated[
        Path, typer.Argument(help="Folder of runs, or one run or sweep.", parser=run_path, metavar="FOLDER")
    ] = RUNS_FOLDER,
    *,
    kind: Annotated[list[str] | None, typer.Option(help="Only checkpoints or leftovers.")] = None,
    run: Annotated[
        list[Path] | None, typer.Option(help="Only this run; may be repeated.", parser=run_path, metavar="RUN")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed; without it, nothing is removed.")] = False,
) -> None:
    """List what can go of runs that have ended or failed, with its size; with --yes, remove it."""
    from grpo_core.run import cleaning

    _require_folder(folder)
    if unknown := [name for name in kind or () if name not in cleaning.KINDS]:
        raise ConfigError(f"--kind {unknown[0]}: choose of {', '.join(cleaning.KINDS)}")
    found = cleaning.clean(folder, kind or tuple(cleaning.KINDS), run or (), remove_them=yes)
    for item in found.items:
        echo(f"{item.kind:12}{shown_bytes(item.bytes):>8}  {item.path}")
    for text in found.skipped:
        echo(f"left alone: {text}", err=True)
    total = f"{len(found.items)} item(s), {shown_bytes(sum(item.bytes for item in found.items))}" if found.items else "nothing"
    echo(f"{total} {'removed' if yes else 'can go; --yes removes them' if found.items else 'can go'}")


def try_prompt(
    run: Annotated[Path, typer.Argument(help="A run with a checkpoint.", parser=run_path, metavar="RUN")],
    prompt: Annotated[str, typer.Argument(help="As a row of its data would hold it; its template is added.")],
    samples: Annotated[int, typer.Option(min=1, help="Answers that are sampled beside the greedy one.")] = 3,
    image: Annotated[Path | None, typer.Option(help="The prompt's image, a file; without it, the prompt has none.")] = None,
) -> None:
    """Ask the newest checkpoint and the initial policy the same prompt, with the same random numbers."""
    os.environ["TQDM_DISABLE"] = "1"  # read when transformers is imported
    with gc_paused():
        from grpo_core.evaluation.one_prompt import answers

    for found in answers(RunDir(run), prompt, samples, image):
        echo(found.policy)
        for label, text in (("greedy", found.greedy), *(("sampled", text) for text in found.sampled)):
            echo(f"  {label:9}{visible(text)}")
