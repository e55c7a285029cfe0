"""The answer of a sweep in plain lines, made from the same objects as the tables and figures."""

from collections import Counter

from grpo_core.sweep.report.best_words import best_lines, bound_lines, seeds_lines
from grpo_core.sweep.report.held import held_words
from grpo_core.sweep.report.knob_words import drift_lines, knob_lines
from grpo_core.sweep.report.numbers import counted, plain
from grpo_core.sweep.statistics.facts import GROUP_SIZE
from grpo_core.sweep.statistics.findings import Findings, best_arm
from grpo_core.sweep.statistics.runs import SweepRuns


def answer(findings: Findings) -> tuple[str, ...]:
    """Return the answer: the best arm, each knob with its drift and interactions, what else differs, and what is missing."""
    sweep = findings.sweep
    if sweep.complete.empty:
        return (_nothing_words(sweep), *_left_out_lines(sweep))
    best = best_arm(findings)
    return (
        *(best_lines(findings, best) if best is not None else ()),
        *bound_lines(sweep, best),
        *seeds_lines(findings),
        *knob_lines(findings),
        *drift_lines(findings),
        *_confound_lines(findings),
        *_left_out_lines(sweep),
    )


def _nothing_words(sweep: SweepRuns) -> str:
    """Return why nothing is compared where no run is complete."""
    states = set(sweep.table["status"])
    if states <= {"missing"}:
        return "no run has been begun: there is nothing to compare yet"
    if states & {"running", "interrupted"}:
        return "no run is complete yet: nothing can be compared"
    return "no run finished with a known objective: nothing can be compared"


def _confound_lines(findings: Findings) -> list[str]:
    lines, table = [], findings.sweep.table
    if GROUP_SIZE in findings.facts.knobs:
        lines.append(f"confound: {held_words(findings.sweep)}")
        factors = table.groupby(GROUP_SIZE, dropna=False)["advantage_rms_factor"].mean().dropna()
        if len(factors) > 1 and factors.max() - factors.min() > 1e-3:
            listed = ", ".join(f"{plain(float(factor))} at G={size:g}" for size, factor in factors.items())
            lines.append(
                f"confound: the advantages' root mean square depends on the group size ({listed}), so a sweep over it also "
                "sweeps the step size"
            )
    if len(set(findings.sweep.complete["steps"].dropna())) > 1:
        lines.append("confound: complete runs differ in their number of steps (see the table of costs)")
    return lines


def _left_out_lines(sweep: SweepRuns) -> list[str]:
    found = sweep.left_out()
    if not found:
        return []
    kinds = Counter(run.kind for run in found)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    line = f"not in the statistics: {counted(len(found), 'run')} ({counts})"
    if "interrupted" in kinds:
        line += "; interrupted runs are not running now; `grpo sweep --resume` continues them"
    if sweep.pruned:
        arms = "arm was pruned and leaves" if len(sweep.pruned) == 1 else "arms were pruned and leave"
        its = "its" if len(sweep.pruned) == 1 else "their"
        line += (
            f"; {len(sweep.pruned)} {arms} the statistics with all {its} runs, since the seeds that the pruner let through "
            "would flatter an arm; what is left still flatters levels whose worse arms are gone"
        )
    return [line]
