"""Claims of papers, measured again: the sweeps of `configs/sweeps/claims`, and docs/claims.md, which is made of their results.

`match` reads off a sweep in `configs/sweeps/claims/matching` with which value each setting has the drift that is wanted, on
seeds that the claim's own sweep does not have. `keep` writes the results of a finished sweep into docs/claims: a row a run, and
what was registered before the first one. `page` writes the page.
"""

import argparse
import math
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas

from grpo_core.evaluation.results import table_file
from grpo_core.run.curves import read_table
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.results import collect

ROOT = Path(__file__).parents[1]
FILES, RESULTS = ROOT / "configs" / "sweeps" / "claims", ROOT / "docs" / "claims"
DRIFT = 0.20
"""Nats a token, exact, on the probe set after the last step: what settings are compared at."""
FIGURES = {"pass_at_1": "eval/heldout/pass_at_1", "pass_at_4": "eval/heldout/pass_at_4", "ref_lag": "ref/lag"}
"""What is kept of each run beside its objective and its drift: where it ended."""


def match(folder: Path) -> dict[str, float]:
    """Return for each setting the value with which its drift is the wanted one, interpolated in the logarithms of both.

    Of `sync_by_drift` the wanted drift is that of periodic syncs, and the value the bound; of the others it is `DRIFT`, and β.
    """
    runs = collect(SweepDir(folder).read()).complete
    if "loss.beta" in runs:
        drifts = runs.groupby(["setting", "loss.beta"])["drift"].mean().unstack()
        return {str(setting): crossing(list(drifts.columns), list(row), DRIFT) for setting, row in drifts.iterrows()}
    means = runs.groupby("setting")["drift"].mean()
    wanted = float(means.pop("every 10 steps"))
    bounds = [float(setting.removeprefix("above ")) for setting in means.index]
    return {"by drift": crossing(bounds, list(means), wanted)}


def crossing(values: Sequence[float], drifts: Sequence[float], wanted: float) -> float:
    """Return where log drift, linear in log value between its neighbours, is the wanted one; to three digits."""
    x, y = np.log(np.array([values, drifts], dtype=float))
    order = np.argsort(y)
    low, high = y[order[0]], y[order[-1]]
    if not low <= math.log(wanted) <= high:
        raise SystemExit(f"drift {wanted:.3g} is outside of {math.exp(low):.3g} to {math.exp(high):.3g}; widen the values")
    return float(f"{math.exp(np.interp(math.log(wanted), y[order], x[order])):.3g}")


def write_matched(name: str, found: Mapping[str, float]) -> None:
    """Write matched values into the file of a claim."""
    file = FILES / f"{name}.yaml"
    text = file.read_text()
    for setting, value in found.items():
        key = "above" if setting == "by drift" else "loss.beta"
        text = re.sub(rf"(?m)^(  {re.escape(setting)}: .*\b{re.escape(key)}: )[\d.e-]+", rf"\g<1>{value:g}", text)
    file.write_text(text)


def keep(name: str, folder: Path) -> None:
    """Write a row a run, and what was registered before the first of them, into docs/claims."""
    stored = SweepDir(folder).read()
    knobs = stored.plan.sweep.knobs
    rows = [{key: row[key] for key in (*knobs, "seed")} | _reached(row) for row in collect(stored).complete.to_dict("records")]
    RESULTS.mkdir(exist_ok=True)
    pandas.DataFrame(rows).to_csv(RESULTS / f"{name}.csv", index=False, float_format="%.6g")
    shutil.copy(stored.dir.preregistered_file, RESULTS / f"{name}.json")
    print(f"{name}: {len(rows)} runs kept")


def _reached(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what one run has reached, when it began, and on what."""
    run_dir = RunDir(Path(row["run_dir"]))
    records, facts = read_journal(run_dir.journal_file), run_dir.read_provenance()
    last: dict[str, float] = {}
    for record in records:
        last |= record.metrics
    table = read_table(table_file(run_dir, "final"))
    wrong = [] if table is None else list(table["tokens"][(table["sample"] >= 0) & ~table["correct"].astype(bool)])
    return {
        "began": records[0].time,
        "objective": row["objective"],
        "drift": row["probe_kl_init"],
        **{name: last.get(metric, math.nan) for name, metric in FIGURES.items()},
        "tokens_of_wrong": fmean(wrong) if len(wrong) else math.nan,
        "processor": facts["processor"],
        "torch": facts["packages"]["torch"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Match, or keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("match", "keep"))
    parser.add_argument("name", help="of a file in configs/sweeps/claims")
    parser.add_argument("folder", type=Path, help="of its finished sweep")
    given = parser.parse_args(arguments)
    if given.what == "match":
        write_matched(given.name, found := match(given.folder))
        print(found)
    else:
        keep(given.name, given.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
