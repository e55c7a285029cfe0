"""Part `bitwise`: two runs of the same seed, whose journals, tables and checkpoints are compared bit for bit."""

from benchmarks.gpu_check.part import Context, Figure, Result, Table
from benchmarks.gpu_check.trainings import configured, new_run, not_finite, random_workload, steps_of, train_to_end, ways
from tests.torture.compare import differences

DTYPES = ("float32", "bfloat16")
SHOWN = 10
"""Most differences in the report."""


def run(context: Context) -> Result:
    """Train twice in each type."""
    figures, found = dict[str, Figure](), list[tuple[str, str]]()
    for dtype in DTYPES:
        lines, facts = _twice(context, dtype)
        figures |= facts
        found += [(dtype, line) for line in lines]
    table = Table(title="Differences", head=("type", "what"), rows=tuple(found[:SHOWN]))
    text = f"{len(found)} differences, first {found[0][0]}: {found[0][1]}" if found else "fp32 and bf16 repeat to the bit"
    return Result(verdict="failed" if found else "passed", text=text, figures=figures, tables=(table,) if found else ())


def _twice(context: Context, dtype: str) -> tuple[list[str], dict[str, Figure]]:
    """Return (what differs between two runs or is not finite, facts of the first)."""
    config = configured(random_workload(context, dtype), context.folder / f"inputs-{dtype}")
    first, second = (train_to_end(new_run(config, context.folder / f"{dtype}-{number}")) for number in (1, 2))
    steps = steps_of(first)
    lines = [*not_finite(steps), *differences(first, second)]
    facts: dict[str, Figure] = {
        **ways(first),
        "steps": len(steps),
        "mean completion tokens": max(record.metrics["completion/tokens/mean"] for record in steps),
        "distance from the reference": max(record.metrics["ref/param_distance"] for record in steps),
        "differences": len(lines),
    }
    return lines, {f"{dtype}: {key}": value for key, value in facts.items()}
