"""Part `killed`: a run that is killed twice and resumed, compared bit for bit with one that never died (tests/torture)."""

import time
from dataclasses import replace

from benchmarks.gpu_check.part import Context, Result, Table
from benchmarks.gpu_check.trainings import configured, random_workload
from tests.torture.aims import Wish
from tests.torture.phases import Phase
from tests.torture.plans import Plan
from tests.torture.report import kill_line
from tests.torture.runs import run_witness, torture
from tests.torture.variants import Variant

STEPS = 5
SECONDS = 3600.0
"""The part's own limit comes first."""


def run(context: Context) -> Result:
    """Kill once after the optimizer step of an update, once while a checkpoint is written."""
    workload = replace(random_workload(context, "bfloat16"), steps=STEPS)
    variant = Variant(name="gpu-check", config=configured(workload, context.folder / "inputs"))
    wishes = (
        Wish(phase=Phase.UPDATE, certain=True, moment="middle"),
        Wish(phase=Phase.WRITE, certain=True, soon=True, moment="middle"),
    )
    plan = Plan(number=1, variant=variant.name, wishes=wishes, damaged=False, seed="gpu-check")
    deadline = time.monotonic() + SECONDS
    witness = run_witness(variant, context.folder / "witness", deadline)
    outcome = torture(plan, variant, witness, context.folder / "killed", deadline)
    failed = list(outcome.differences)
    if len(outcome.deaths) < len(wishes):
        failed.append(f"killed {len(outcome.deaths)} times instead of {len(wishes)}: nothing is shown")
    tables = [Table(title="Kills", head=("where",), rows=tuple((kill_line(outcome, death),) for death in outcome.deaths))]
    if failed:
        tables.append(Table(title="Differences", head=("what",), rows=tuple((line,) for line in failed[:10])))
    return Result(
        verdict="failed" if failed else "passed",
        text=failed[0] if failed else f"killed {len(outcome.deaths)} times and resumed: equal to the bit",
        figures={"steps": STEPS, "lives": outcome.lives, "differences": len(outcome.differences)},
        tables=tuple(tables),
    )
