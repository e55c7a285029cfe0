"""Claims of papers, measured again: the sweeps of `configs/sweeps/claims`, and docs/claims.md, which is made of their results.

`match` reads off a sweep in `configs/sweeps/claims/matching` with which value each setting has the drift that is wanted, on
seeds that the claim's own sweep does not have. `keep` writes the results of a finished sweep into docs/claims: a row a run, and
what was registered before the first one. `page` writes docs/claims.md and its picture.
"""

import argparse
import math
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas
from matplotlib.figure import Figure

from grpo_core.config.spelling import level_name
from grpo_core.evaluation.results import table_file
from grpo_core.machine.disk import read_json
from grpo_core.run.curves import read_table
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.sweep.arms import grid
from grpo_core.sweep.display import bounds, knob_name, over_seeds, p_words, signed
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.plan import load_sweep
from grpo_core.sweep.results import collect
from grpo_core.sweep.schema import ClaimConfig, PrimaryConfig, SweepConfig
from grpo_core.sweep.statistics.effects import Difference, knob_effects, mean_and_half_width
from grpo_core.sweep.statistics.paired import standard_error
from grpo_core.sweep.statistics.power import Question, smallest_standardised
from grpo_core.sweep.statistics.runs import SweepRuns
from grpo_core.sweep.statistics.verdict import Verdict, verdict
from grpo_core.text import markdown_table

ROOT = Path(__file__).parents[1]
FILES, RESULTS = ROOT / "configs" / "sweeps" / "claims", ROOT / "docs" / "claims"
DRIFT = 0.20
"""Nats a token, exact, on the probe set after the last step: what settings are compared at."""
NAMES = ("estimators", "group_size", "length_bias", "moving_reference", "clip_higher", "sync_by_drift")
COLUMNS = {
    "objective": "{objective}",
    "drift": "exact drift, nats/token",
    "pass_at_1": "pass@1",
    "pass_at_4": "pass@4",
    "tokens_of_wrong": "tokens of wrong completions",
    "ref_lag": "age of the reference, steps",
}
"""Of the table of a claim."""
FIGURES = {"pass_at_1": "eval/heldout/pass_at_1", "pass_at_4": "eval/heldout/pass_at_4", "ref_lag": "ref/lag"}
"""What is kept of each run beside its objective and its drift: where it ended."""


def match(folder: Path) -> dict[str, float]:
    """Return for each setting the value with which its drift is the wanted one, interpolated in the logarithms of both.

    Of `sync_by_drift` the wanted drift is that of periodic syncs, and the value the bound; of the others it is `DRIFT`, and β.
    """
    runs = collect(SweepDir(folder).read()).complete
    if "loss.beta" in runs:
        drifts = runs.groupby(["setting", "loss.beta"])["drift"].mean().unstack()
        return {
            str(setting): crossing([float(beta) for beta in drifts], list(row), DRIFT) for setting, row in drifts.iterrows()
        }
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


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A claim, and what its sweep has found."""

    name: str
    sweep: SweepConfig
    claim: ClaimConfig
    primary: PrimaryConfig
    table: pandas.DataFrame
    """A row a run."""
    registered: Mapping[str, Any]
    differences: tuple[float, ...]
    """`primary.second` - `primary.first`, one per seed."""
    verdict: Verdict
    contrasts: tuple[Difference, ...]
    """Of all levels of all parameters in the objective, one family."""


def measured(name: str) -> Measured:
    """Return a claim with the results that are kept of it."""
    sweep, table = load_sweep(FILES / f"{name}.yaml").sweep, pandas.read_csv(RESULTS / f"{name}.csv")
    claim, primary = sweep.claim, sweep.primary
    assert claim is not None
    assert primary is not None
    numbers = {tuple(values.values()): number for number, values in enumerate(grid(sweep))}
    arms = [numbers[values] for values in table[list(sweep.knobs)].itertuples(index=False, name=None)]
    runs = SweepRuns(name=name, config=sweep, runs=table.assign(arm=arms, status="finished"), planned_runs=len(table))
    contrasts = tuple(one for one in knob_effects(runs) if isinstance(one, Difference))
    (asked,) = (one for one in contrasts if one.knob == primary.knob and {one.first, one.second} == set(primary.levels or ()))
    sign = 1 if asked.second == primary.second else -1
    differences = tuple(sign * one for one in asked.differences)
    return Measured(
        name=name,
        sweep=sweep,
        claim=claim,
        primary=primary,
        table=table,
        registered=read_json(RESULTS / f"{name}.json"),
        differences=differences,
        verdict=verdict(differences, effect=claim.effect, margin=claim.margin),
        contrasts=contrasts,
    )


INTRODUCTION = """# Claims, measured again

Written by `python -m benchmarks.claims page` from the results in [claims](claims); edit the sweep
files, not this page.

Six claims about GRPO, each a sweep of a tiny model on sums
([configs/sweeps/claims](../configs/sweeps/claims)): 512 completions a step, 60 steps, 8 seeds, and
400 held-out prompts with 16 completions each. The claim, the effect that is expected and the margin
are in the file, and registered before the first run. Where estimators, or fixed and moving
references, are compared, each setting has the β with which it drifts as far as the others, found on
seeds that no claim uses ([matching](../configs/sweeps/claims/matching)).

- **Shown**, **refuted**: the 95 % interval over seeds excludes 0, on the claimed side or the other.
- **Equivalent within the margin**: the 90 % interval is inside it, whether or not there is a
  difference (two one-sided tests at 5 %).
- A claim that nothing differs is refuted where the 95 % interval lies beyond the margin.
- **Undecided**: none of these.
- **80 % power**: the smallest difference that 8 seeds with the spread of these show in four of five
  repetitions. It was not stated before.

What a tiny model shows is shown of a tiny model; each claim says what its setting cannot show. `grpo
sweep configs/sweeps/claims/NAME.yaml` runs one again, in 8 to 20 minutes on two cores.
"""


def page() -> str:
    """Return docs/claims.md."""
    claims = [measured(name) for name in NAMES]
    rows = [(f"[{one.name}](#{one.name})", one.claim.source, f"**{one.verdict.word}**", *_sizes(one)) for one in claims]
    head = ("Claim", "Source", "Verdict", "Difference [95 %]", "Margin", "80 % power")
    picture = "![The difference of each claim with its 95 % interval, in margins](images/claims.png)\n"
    return "\n".join([INTRODUCTION, markdown_table(head, rows), "", picture, *map(_section, claims)])


def _sizes(one: Measured) -> tuple[str, str, str]:
    smallest = smallest_standardised(len(one.differences), Question(name="a pair alone")) * standard_error(one.differences)
    return _difference(one), f"{one.claim.margin:g}", f"{smallest:.2g}"


def _difference(one: Measured) -> str:
    return " ".join(bounds(one.verdict.mean, *one.verdict.interval))


def _section(one: Measured) -> str:
    objective, claim, links = one.sweep.objective.name, one.claim, f"claims/{one.name}"
    asked = " against ".join(level_name(one.primary.knob, level) for level in (one.primary.second, one.primary.first))
    narrow = bounds(one.verdict.mean, *one.verdict.narrow)[1]
    contrasts = [
        (
            knob_name(found.knob),
            found.name,
            " ".join(bounds(found.estimate.mean, found.estimate.low, found.estimate.high)),
            p_words(found.holm_p).removeprefix("p = "),
        )
        for found in one.contrasts
    ]
    machines = sorted(set(zip(one.table["processor"], one.table["torch"], strict=True)))
    return f"""## {one.name}

> {claim.says} ({claim.source})

**{one.verdict.word.capitalize()}.** {asked}: a difference in {objective} of {_difference(one)}, 90 % {narrow}; claimed {
        signed(claim.effect)
    }, margin {claim.margin:g}.

{_settings(one)}

Means of {len(one.sweep.seeds)} seeds with 95 % intervals. All contrasts in {
        objective
    }, with Holm's correction among themselves:

{markdown_table(("Parameter", "Difference", "Mean [95 %]", "Holm p"), contrasts)}

{_note(one)}**What this cannot show:** {claim.limits}

[{one.name}.yaml](../configs/sweeps/{links}.yaml), [a row a run]({links}.csv), [registered]({links}.json) {
        one.registered["written"]
    }, first record {min(one.table["began"])[:19]}+00:00; {
        " and ".join(f"{processor}, torch {version}" for processor, version in machines)
    }.
"""


def _note(one: Measured) -> str:
    """Return what is to be known of the result, which nobody could have stated before."""
    if one.name != "estimators":
        return ""
    drifts = one.table.loc[one.table["setting"] == one.primary.first, "drift"]
    ends = f"{drifts.min():.2f} and {drifts.max():.2f}"
    return (
        f"**The drift of plain k3 cannot be matched.** With one β it ends between {ends} nats a token, by seed;"
        f" the others end at {DRIFT:.2f}, within 0.015 in the mean. So it is not held at their drift: it goes "
        "further and gets less right.\n\n"
    )


def _settings(one: Measured) -> str:
    """Return the table of a claim's settings, with the figures that differ between runs."""
    knobs, objective = list(one.sweep.knobs), one.sweep.objective
    given = {"pass_at_1"} if objective.metric.endswith("pass_at_1") else set()
    figures = [name for name in COLUMNS if name not in given and one.table[name].nunique() > 1]
    head = ("Setting", *(COLUMNS[name].format(objective=objective.name) for name in figures))
    groups = dict(list(one.table.groupby(knobs, dropna=False)))
    rows = []
    for values in grid(one.sweep):
        of_setting = groups[tuple(values.values())]
        name = " · ".join(level_name(knob, level) for knob, level in values.items())
        rows.append((name, *(_over_seeds(list(of_setting[figure])) for figure in figures)))
    return markdown_table(head, rows)


def _over_seeds(values: Sequence[float]) -> str:
    return over_seeds(values, *mean_and_half_width(values))


def draw() -> None:
    """Draw each claim's difference with its 95 % interval in units of its margin."""
    claims = [measured(name) for name in NAMES]
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.axvspan(-1, 1, color="#e8e8e8", label="within the margin")
    axes.axvline(0, color="#888888", linewidth=0.8)
    for place, one in enumerate(reversed(claims)):
        mean, low, high = (value / one.claim.margin for value in (one.verdict.mean, *one.verdict.interval))
        axes.errorbar(mean, place, xerr=[[mean - low], [high - mean]], fmt="o", color="#0072b2", capsize=3)
        axes.plot(one.claim.effect / one.claim.margin, place, marker="D", mfc="none", color="#d55e00", linestyle="")
    axes.set_yticks(range(len(claims)), [f"{one.name}: {one.verdict.word}" for one in reversed(claims)])
    axes.set_xlabel("difference / margin (dot and 95 % interval; diamond: what is claimed)")
    figure.savefig(ROOT / "docs" / "images" / "claims.png", dpi=110, metadata={"Software": None})


def main(arguments: Sequence[str] | None = None) -> int:
    """Match, keep, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("match", "keep", "page"))
    parser.add_argument("name", nargs="?", help="of a file in configs/sweeps/claims")
    parser.add_argument("folder", nargs="?", type=Path, help="of its finished sweep")
    given = parser.parse_args(arguments)
    if given.what == "page":
        (ROOT / "docs" / "claims.md").write_text(page())
        draw()
    elif given.what == "match":
        write_matched(given.name, found := match(given.folder))
        print(found)
    else:
        keep(given.name, given.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
