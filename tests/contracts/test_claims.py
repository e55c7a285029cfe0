"""docs/claims.md says what the kept results say, and these are of what was registered before the first run."""

import os
from datetime import datetime
from itertools import product
from typing import Any

import pandas
import pytest
from scipy import stats

from benchmarks import claims
from grpo_core.machine.disk import read_json
from grpo_core.sweep.preregistration import PLANNED

PAGE = claims.ROOT / "docs" / "claims.md"


def table_of(name: str) -> pandas.DataFrame:
    return pandas.read_csv(claims.RESULTS / f"{name}.csv")


def test_the_page_is_that_of_the_results() -> None:
    if os.environ.get("GRPO_WRITE_DOCS"):
        PAGE.write_text(claims.page())
    assert PAGE.read_text() == claims.page()
    assert {file.stem for file in claims.FILES.glob("*.yaml")} == set(claims.NAMES)


@pytest.mark.parametrize("name", claims.NAMES)
def test_the_verdict_is_that_of_scipys_t_tests(name: str) -> None:
    sweep: Any = claims.load_sweep(claims.FILES / f"{name}.yaml").sweep
    table, primary, claim = table_of(name), sweep.primary, sweep.claim
    means = table.groupby([primary.knob, "seed"])["objective"].mean()
    second, first = (means[level].to_numpy() for level in (primary.second, primary.first))
    test = stats.ttest_rel(second, first)
    low, high = test.confidence_interval(0.95)
    below = stats.ttest_1samp(second - first, -claim.margin, alternative="greater").pvalue
    above = stats.ttest_1samp(second - first, claim.margin, alternative="less").pvalue
    if max(below, above) < 0.05:
        word = "equivalent within the margin"
    elif claim.effect == 0:
        word = "refuted" if low > claim.margin or high < -claim.margin else "undecided"
    elif test.pvalue < 0.05:
        word = "shown" if (second - first).mean() * claim.effect > 0 else "refuted"
    else:
        word = "undecided"
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| [{name}]("))
    _, _, source, given, difference, margin, smallest, _ = (part.strip() for part in row.split("|"))
    assert (source, given, float(margin)) == (claim.source, f"**{word}**", claim.margin)
    shown = stats.nct.sf(stats.t.ppf(0.975, 7), 7, float(smallest) / stats.sem(second - first))  # of a t test of 8 seeds
    assert shown == pytest.approx(0.8, abs=0.05)
    mean, *interval = (float(part.strip("[],")) for part in difference.split())
    assert [mean, *interval] == pytest.approx([(second - first).mean(), low, high], abs=0.6 * 10 ** -_decimals(difference))


def _decimals(difference: str) -> int:
    return len(difference.split(maxsplit=1)[0].partition(".")[2])


@pytest.mark.parametrize("name", claims.NAMES)
def test_every_run_that_was_registered_is_there_and_began_after_it(name: str) -> None:
    sweep: Any = claims.load_sweep(claims.FILES / f"{name}.yaml").sweep
    table, registered = table_of(name), read_json(claims.RESULTS / f"{name}.json")
    known = [key for key in PLANNED if key in registered]
    assert {"claim", "primary", "settings", "axes", "seeds", "objective"} <= set(known)
    assert {key: registered[key] for key in known} == {key: sweep.model_dump(mode="json")[key] for key in known}
    assert datetime.fromisoformat(registered["written"]) < min(map(datetime.fromisoformat, table["began"]))
    found = list(table[[*sweep.knobs, "seed"]].itertuples(index=False, name=None))
    wanted = [(*arm.values(), seed) for arm, seed in product(claims.grid(sweep), sweep.seeds)]
    assert sorted(found, key=str) == sorted(wanted, key=str)


@pytest.mark.parametrize("name", ["estimators", "moving_reference"])
def test_what_is_compared_at_equal_drift_has_it_but_for_plain_k3_which_varies(name: str) -> None:
    drifts = table_of(name).groupby("setting")["drift"].agg(["mean", "std"]).drop(index="k3", errors="ignore")
    assert drifts["mean"].to_numpy() == pytest.approx(claims.DRIFT, abs=0.015)
    plain = table_of(name).query("setting == 'k3'")["drift"]
    assert plain.empty or plain.std() > 5 * drifts["std"].max()


def test_the_value_that_gives_a_drift_is_read_off_between_its_neighbours() -> None:
    # Halfway in the logarithm: drift 0.2 between 0.4 at 1 and 0.1 at 4 is at 2.
    assert claims.crossing([1.0, 4.0, 16.0], [0.4, 0.1, 0.01], 0.2) == 2.0
    with pytest.raises(SystemExit, match="widen"):
        claims.crossing([1.0, 4.0], [0.4, 0.1], 0.5)
