"""Kill trainings of a tiny model with SIGKILL, resume them until they are done, and compare them with runs that never died.

python -m tests.torture                   24 runs
python -m tests.torture --only 7 --keep folder   run 7 of the same seed again, and keep its files

Each run is killed one to three times, in a phase and at a point chosen by the seed; some are killed again before their first
new checkpoint, and of some the newest checkpoint is damaged while they are dead. Weights, references, AdamW's moments,
counters and every deterministic figure of the journal must be those of the uninterrupted run, bit for bit. Exit code 1 unless
all runs are equal and every phase had its kills.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grpo_core.run.folder import RunDir
from tests.torture.lives import OutOfTimeError
from tests.torture.plans import Plan, make_plans
from tests.torture.report import as_json, end_line, kill_line, missing_counts, phase_table
from tests.torture.runs import Outcome, run_witness, torture
from tests.torture.variants import OVERRIDES, Variant, build_variant, write_models
from tests.torture.victim import FAULTS


class Campaign:
    """All runs of one call."""

    def __init__(self, folder: Path, plans: Sequence[Plan], deadline: float, fault: str | None) -> None:
        """Prepare the model and the variants that the plans name.

        Args:
            folder: where everything is written.
            plans: of the runs.
            deadline: as `time.monotonic`; what is not done then is left undone.
            fault: planted in the victims.
        """
        self._folder, self._plans, self._deadline, self._fault = folder, plans, deadline, fault
        models = write_models(folder / "models", sorted({plan.variant for plan in plans}))
        self._variants: dict[str, Variant] = {name: build_variant(name, model) for name, model in models.items()}
        self._speaking = threading.Lock()

    def run(self, jobs: int) -> list[Outcome]:
        """Run the witnesses, then everything else, `jobs` at a time; return the outcomes of those that were done."""
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            try:
                witnesses = dict(zip(self._variants, pool.map(self._witness, self._variants.values()), strict=True))
                outcomes = list(pool.map(lambda plan: self._torture(plan, witnesses[plan.variant]), self._plans))
            except BaseException:
                # The terminal interrupts what runs; what waits is not to begin.
                self._deadline = 0.0
                raise
        return [outcome for outcome in outcomes if outcome is not None]

    def _witness(self, variant: Variant) -> RunDir | None:
        try:
            return run_witness(variant, self._folder / f"witness-{variant.name}", self._deadline)
        except OutOfTimeError:
            return None

    def _torture(self, plan: Plan, witness: RunDir | None) -> Outcome | None:
        if witness is None or time.monotonic() > self._deadline:
            return None
        folder = self._folder / f"run-{plan.number:02}"
        try:
            outcome = torture(plan, self._variants[plan.variant], witness, folder, self._deadline, self._fault)
        except OutOfTimeError:
            return None
        with self._speaking:
            for death in outcome.deaths:
                say(kill_line(outcome, death))
            say(end_line(outcome))
        return outcome


def say(line: str) -> None:
    """Write a line at once, into a pipe too."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=20.0, help="no longer than this; what is not done then is named")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--kills", type=int, default=3, help="at most so many a run")
    parser.add_argument("--variants", nargs="+", choices=OVERRIDES, default=list(OVERRIDES), metavar="NAME")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="only these of the runs")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a JSON summary there")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder, in which the run dirs stay")
    parser.add_argument("--fault", choices=FAULTS, help="let the victims forget this at a resume: the runs must differ")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where all runs are equal and every required count is reached."""
    options = parse(arguments)
    started = time.monotonic()
    plans = make_plans(options.seed, options.runs, options.variants, options.kills)
    plans = [plan for plan in plans if options.only is None or plan.number in options.only]
    with tempfile.TemporaryDirectory(prefix="torture-") as scratch:
        folder = (options.keep or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=options.keep is None)
        outcomes = Campaign(folder, plans, started + 60 * options.minutes, options.fault).run(options.jobs)
    done = {outcome.plan.number for outcome in outcomes}
    undone = [plan.number for plan in plans if plan.number not in done]
    seconds = time.monotonic() - started
    if options.report:
        options.report.write_text(json.dumps(as_json(outcomes, undone, seconds), indent=2) + "\n")
    missing = missing_counts(outcomes)
    equal = sum(outcome.is_equal for outcome in outcomes)
    say(f"\n{phase_table(outcomes)}\n")
    for line in ([f"not done in {options.minutes:g} minutes: runs {undone}"] if undone else []) + missing:
        say(f"MISSING {line}")
    say(f"{equal} of {len(plans)} runs equal, {len(outcomes)} done, in {seconds:.0f} s")
    return 0 if equal == len(plans) and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
