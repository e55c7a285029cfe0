"""The report of a sweep's folder: its runs become tables, Parquet tables of effects, and one HTML page."""

from pathlib import Path

import pandas

from grpo_core.machine.disk import write_whole
from grpo_core.pages import Table, render
from grpo_core.sweep.display import MEASURES, capital, knob_title
from grpo_core.sweep.folder import StoredSweep
from grpo_core.sweep.report import charts, tables
from grpo_core.sweep.report.answer import Answer, answer
from grpo_core.sweep.report.words import sentence_values
from grpo_core.sweep.results import collect
from grpo_core.sweep.statistics.findings import Findings, drift_measure, find
from grpo_core.sweep.statistics.runs import SweepRuns


def make_report(stored: StoredSweep, comparison: str | None = None) -> tuple[SweepRuns, Answer]:
    """Write tables and page of a sweep, finished or not; return its runs and the answer.

    Args:
        stored: the sweep.
        comparison: page of the comparison of its runs, relative to the report's folder; the report links to it.

    Raises:
        FolderError: the folder is not ours.
        SweepError: the sweep's own files are damaged.
    """
    stored.dir.require_ours()
    sweep, folder = collect(stored), stored.dir.results
    folder.mkdir(exist_ok=True)
    for name in ("runs", "steps", "syncs"):
        _storable(getattr(sweep, name)).to_parquet(folder / f"{name}.parquet", index=False)
    sweep.runs.to_csv(folder / "runs.csv", index=False)
    return sweep, write_report(sweep, stored.dir.report, comparison)


def _storable(table: pandas.DataFrame) -> pandas.DataFrame:
    """Return a table whose columns have one type each: values of different kinds, and lists, become text."""
    kinds = {
        column: {type(value) for value in table[column] if value is not None}
        for column in table
        if table[column].dtype == object
    }
    mixed = [column for column, of_column in kinds.items() if len(of_column) > 1 or of_column & {list, dict}]
    return table.assign(**{str(column): table[column].map(str, na_action="ignore") for column in mixed})


def write_report(sweep: SweepRuns, folder: Path, comparison: str | None = None) -> Answer:
    """Write report.html, effects.parquet, interactions.parquet and differences.parquet; return the answer.

    Args:
        sweep: its runs.
        folder: made if it is not there; files of the same names are replaced.
        comparison: page of the comparison of the runs, relative to `folder`; None = there is none.
    """
    findings = find(sweep)
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.findings_tables(findings).items():
        table.to_parquet(folder / f"{name}.parquet", index=False)
    write_whole(folder / "report.html", render_page(findings, comparison))
    return answer(findings)


# The page


def render_page(findings: Findings, comparison: str | None = None) -> str:
    """Return the page as HTML.

    Args:
        findings: what it shows.
        comparison: page of the comparison of the runs; None = there is none.
    """
    sweep = findings.sweep
    varied, drawn = sweep.varied if len(sweep.complete) else [], findings.associations("objective")
    measure, rows = drift_measure(sweep), tables.setting_rows(sweep)
    return render(
        "grpo_core.sweep.report",
        "report.html.j2",
        f"Sweep {sweep.name}",
        [],
        sweep=sweep,
        tables=_tables(findings),
        answer=answer(findings),
        rows=rows,
        objective=sweep.name_of("objective"),
        objective_title=capital(sweep.name_of("objective")),
        axis=charts.axis,
        gains=charts.axis([*sweep.complete["objective"], sweep.before], is_share=sweep.is_share("objective")),
        drift="" if measure is None else MEASURES[measure].outcome,
        levels={knob_title(knob): charts.level_rows(sweep, knob) for knob in varied if knob not in drawn},
        planes={knob_title(knob): charts.drawn_points(sweep, knob) for knob in drawn},
        curves=list(charts.curves(sweep)),
        comparison=comparison,
        **sentence_values(findings),
    )


def _tables(findings: Findings) -> dict[str, list[Table]]:
    """Return the tables of each fold of the page."""
    sweep, told = findings.sweep, list(findings.interactions)
    sure = [tables.contrast_table(findings, outcome, knob) for outcome in told for knob in sweep.varied]
    sure += [table(findings, outcome) for outcome in told for table in (tables.association_table, tables.interaction_table)]
    return {
        "sure": [*sure, tables.difference_table(findings)],
        "effects": [*tables.pair_tables(sweep), tables.secondary_table(findings)],
        "figures": [tables.outcome_table(sweep), tables.cost_table(sweep)],
        "runs": [tables.left_out_table(sweep), tables.run_table(sweep)],
    }
