"""What a group-size sweep was to hold constant, and whether it did."""

import math

from grpo_core.sweep.report.numbers import number
from grpo_core.sweep.statistics.runs import SweepRuns

MEANS = {
    "prompts": "so larger groups had more completions, tokens and time a step",
    "completions": "so larger groups saw fewer prompts a step",
    "tokens": "so arms may differ in their steps and prompts",
}
"""Invariant -> what it means for the comparison."""
SAID = {"prompts": "prompts of a step", "completions": "completions of a step"}
MEASURED = {"tokens": "generated", "completions": "had"}
"""Invariants that the frame of runs measures, in a column of that name, with the verb of the sentence."""
NO_HOLD = "nothing was held constant while the group size changed, so the arms differ in data and compute, too"


def held_words(sweep: SweepRuns) -> str:
    """Return what was held, the range that the complete runs really had of it, and what that means for the comparison.

    The range is that of whole runs: largest / smallest - 1, in per cent.
    """
    hold = sweep.facts.hold
    if hold is None:
        return NO_HOLD
    words = [f"held: {SAID.get(hold, hold)}", *([MEANS[hold]] if hold in MEANS else [])]
    return ", ".join(words) + (f"; {_measured(sweep, hold)}" if hold in MEASURED else "")


def _measured(sweep: SweepRuns, hold: str) -> str:
    known = sweep.complete[hold].dropna()
    if known.empty:
        return f"how many {hold} the runs {MEASURED[hold]} was not measured"
    least, most = float(known.min()), float(known.max())
    if least == most:
        return f"measured, every run {MEASURED[hold]} {least:,.0f} {hold}"
    percent = 100 * (most / least - 1) if least > 0 else math.nan
    apart = "" if math.isnan(percent) else f" ({f'{percent:.0f}' if percent >= 1 else number(percent, 1)} % apart)"
    return f"measured, the runs {MEASURED[hold]} between {least:,.0f} and {most:,.0f} {hold}{apart}"
