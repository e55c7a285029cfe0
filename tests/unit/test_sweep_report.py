"""How sure each statement is, tables, charts and page of a sweep, from frames made by hand."""

import html
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas
import pytest
from scipy import stats

from grpo_core.sweep.display import MINUS, p_words, plain
from grpo_core.sweep.report.charts import curves, level_rows
from grpo_core.sweep.report.files import render_page, write_report
from grpo_core.sweep.report.tables import interaction_table, outcome_table, setting_rows
from grpo_core.sweep.statistics.findings import find, shrunken_means
from grpo_core.sweep.statistics.runs import SweepRuns
from tests.support.pages import Page
from tests.support.sweep_frames import (
    BETA,
    BOUND,
    GROUP,
    NOTHING,
    SYNC,
    bounded,
    by_prompt,
    crossed,
    grid,
    run,
    statements,
    swept,
    two_knobs,
)


def line(words: Sequence[str], start: str) -> str:
    """Return the only line that starts so."""
    (found,) = [text for text in words if text.startswith(start)]
    return found


def written(sweep: SweepRuns, folder: Path) -> Page:
    """Return the page of a sweep."""
    write_report(sweep, folder, comparison="compare/compare.html")
    return Page((folder / "report.html").read_text())


# Parameters


def test_a_planted_effect_is_stated_with_the_figures_of_the_table(tmp_path: Path) -> None:
    sweep = swept(grid(effect=-0.2))
    write_report(sweep, tmp_path)
    effects = pandas.read_parquet(tmp_path / "effects.parquet")
    row = effects[(effects["outcome"] == "objective") & (effects["knob"] == BETA)].iloc[0]
    interval = f"{-row['difference']:.3f} [{-row['high']:.3f}, {-row['low']:.3f}]"
    words = statements(find(sweep))
    assert f"β: 0.01 over 0.5 by {interval}, Holm {p_words(row['holm_p'])}: established; on these prompts" in words
    assert row["holm_p"] < 0.05
    page = html.unescape((tmp_path / "report.html").read_text())
    assert all(f"<li>{text}</li>" in page for text in words)


def test_what_is_not_there_and_what_only_the_correction_hides_are_told_apart() -> None:
    findings = find(swept(grid()))
    words = statements(findings)
    for start in ("β: ", "group size: "):
        assert line(words, start).endswith(": no difference shown yet; on these prompts")
    (found,) = findings.contrasts("objective", SYNC)
    assert found.estimate.excludes_zero
    assert found.holm_p > 0.05
    said = line(words, "sync period: ")
    assert f"10 over never by {-found.estimate.mean:.4f} [" in said
    assert said.endswith(": hint; on these prompts")


def test_drift_says_which_beta_holds_the_policy_closer() -> None:
    frame = grid()
    frame["kl_init_seq"] = 5 - 3 * (frame[BETA] == 0.5) + 0.01 * frame["seed"] * frame[BETA]
    words = statements(find(swept(frame)))
    assert ": 0.01 over 0.5 by 2.99" in line(words, "drift (nats per completion), β: ")
    assert "no difference shown yet" in line(words, "drift (nats per completion), group size: ")
    warm = swept(frame.rename(columns={BETA: "rollout.temperature"}), ("rollout.temperature", GROUP, SYNC))
    assert "do not compare" in line(statements(find(warm)), "runs differ in rollout.temperature: their KL figures")


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_many_levels_are_contrasted_in_a_grid_and_associated_where_a_sampler_drew_them(sampler: str) -> None:
    levels = itertools.product([0.1 * level for level in range(1, 10)], (4, 8))
    rows = [
        run(arm, seed, (beta, group, None), 0.5 - 0.1 * beta + 0.01 * seed)
        for arm, (beta, group) in enumerate(levels)
        for seed in (0, 1, 2)
    ]
    findings = find(swept(pandas.DataFrame(rows), sampler=sampler))
    said = line(statements(findings), "β: ")
    assert bool(findings.contrasts("objective", BETA)) == (sampler == "grid")
    if sampler == "random":
        assert said.startswith(
            "β: larger values go with a lower held-out accuracy (rank correlation -1.00 over 18 settings, Holm p"
        )
        assert "an association, not matched settings: the sampler drew 9 values" in said


def test_an_interaction_is_said_with_the_effect_at_each_level() -> None:
    findings = find(two_knobs(crossed, (0, 1, 2, 3)))
    gains = [[crossed(0.1, sync, seed) - crossed(4.0, sync, seed) for seed in range(4)] for sync in (5, None)]
    said = line(statements(findings), "interaction of β and sync period: 0.1 over 4 is ")
    apart = [late - early for early, late in zip(*gains, strict=True)]
    for gain, place in zip(
        (*gains, apart), (" with sync period 5", " where the reference never moves", ", Holm p < 0.0001"), strict=True
    ):
        interval = stats.ttest_1samp(gain, 0).confidence_interval(0.95)
        assert f"{fmean(gain):.3f} [{interval.low:.3f}, {interval.high:.3f}]{place}" in said
    assert "larger where the reference never moves than with sync period 5 by " in said
    # The groups are knobs, interactions and arms, of the objective and, but for arms, of the drift: a fifth for each.
    assert findings.interactions["objective"][0].family_size == pytest.approx(5)
    table = interaction_table(findings, "objective")
    ((effect, between, at_never, at_5, difference, *_),) = table.rows
    # Later level minus earlier in the table: 4 - 0.1 is the effect of the words with the other sign.
    assert (effect, between, table.strong) == ("β: 4 − 0.1", "sync period: never − 5", {0})  # noqa: RUF001 - a minus
    assert [at_5[:6], at_never[:6], difference[:6]] == [f"-{fmean(one):.3f}" for one in (*gains, apart)]


def test_a_mean_effect_that_holds_at_no_level_is_not_left_alone() -> None:
    """The interaction is not established; its size still shows that the mean effect describes neither level."""

    def objective(beta: float, sync: int | None, seed: int) -> float:
        swing = (0.012, -0.012)[seed]  # it leaves the mean effect as it is
        gain = 0.05 + swing + 0.0005 * seed if sync == 5 else 0.18 - swing
        return 0.4 + 0.1 * seed + (gain if beta == 0.1 else 0.0)

    said = line(statements(find(two_knobs(objective, (0, 1)))), "interaction of β and sync period: 0.1 over 4 is ")
    assert re.search(r" 0\.050 \[.*\] with sync period 5, 0\.180 \[.*\] where the reference never moves; ", said)
    assert said.endswith(": no difference shown yet; on these prompts")


# The best setting


def test_the_best_setting_and_how_sure_it_is() -> None:
    frame = grid()
    best = frame.groupby("arm")["objective"].mean().sort_values().index[-1]
    seeds = [f"{value:.3f}" for value in frame.loc[frame["arm"] == best, "objective"]]
    first = statements(find(swept(frame)))[0]
    assert first.startswith("best of 8 settings: β ")
    assert f" ({' · '.join(seeds)}); " in first
    frame.loc[frame["arm"] == 3, "objective"] += 1
    frame.loc[(frame["arm"] == 3) & (frame["seed"] == 0), ["status", "cause"]] = ["failed", "no memory"]
    sweep = swept(frame)
    words = statements(find(sweep))
    assert words[0].startswith("best of 7 settings")
    assert line(words, "not in the statistics").endswith(": 1 of 24 runs: 1 failed")
    (row,) = [row for row in setting_rows(sweep) if row["note"]]
    assert (row["name"], row["note"], setting_rows(sweep)[-1]) == ("β 0.01 · G 8 · sync never", "2 of 3 seeds", row)


def test_a_setting_over_the_bound_on_the_drift_is_never_the_best(tmp_path: Path) -> None:
    frame = bounded()
    best = frame.groupby("arm")["objective"].mean().loc[3:].idxmax()
    bound = swept(frame, **BOUND)
    write_report(bound, tmp_path)
    words, rows = statements(find(bound)), setting_rows(bound)
    name = "β 0.01 · G 4 · sync 10"
    assert rows[0]["is_best"]
    assert words[0].startswith(f"best of 5 settings: {rows[0]['name']}: ")
    assert rows[0]["seeds"] == bound.values["objective"][best]
    assert f"5 of 8 settings; over it, so never the best: {name}, " in line(words, "within the bound of 10")
    assert [row["note"] for row in rows] == [""] * 5 + ["over the bound"] * 3
    page = (tmp_path / "report.html").read_text()
    assert page.count("(over)") == 3
    assert "<small>kl/init/seq, at most 10</small>" in page
    assert statements(find(swept(frame)))[0].startswith(f"best of 8 settings: {name}: ")


def test_the_bound_is_on_the_mean_of_an_arm_and_an_unknown_drift_does_not_keep_it() -> None:
    frame = bounded()
    # Mean 6, upper end 6 + 2.92 x 1 / sqrt(3) = 7.7; of arm 7 the mean keeps the bound and the upper end, 13.0, does not.
    frame.loc[frame["arm"] == 0, "drift"] = [5.0, 6.0, 7.0]
    frame.loc[frame["arm"] == 7, "drift"] = [7.0, 8.0, 99.0]
    frame.loc[(frame["arm"] == 1) & (frame["seed"] == 2), "drift"] = math.nan
    # An incomplete run neither helps nor hurts.
    frame.loc[(frame["arm"] == 7) & (frame["seed"] == 2), ["status", "drift"]] = ["failed", 99.0]
    bound = swept(frame, **BOUND)
    assert [arm.number for arm in bound.over] == [1, 2, 7]
    assert bound.upper_drifts[0] == pytest.approx(6 + stats.t.ppf(0.95, 2) / math.sqrt(3))
    assert math.isnan(bound.upper_drifts[1])
    assert len(swept(frame).within) == 8


def test_a_better_mean_over_other_seeds_is_no_lead() -> None:
    """Two arms with two complete seeds each that share one: paired, the arm with the lower mean is ahead."""
    runs = two_knobs(lambda beta, sync, seed: 0.5 + (0.3 * seed if beta == 0.1 else 0.2), (0, 1, 2), syncs=(5,))
    frame = runs.table.copy()
    frame.loc[[0, 5], "status"] = "failed"  # arm 0 seed 0, arm 1 seed 2
    assert line(statements(find(replace(runs, runs=frame))), "no difference shown yet to 1 of 1 others")


def test_what_the_best_arm_would_be_without_its_luck_by_hand() -> None:
    scores = {0.1: (1.0, 2.0), 4.0: (3.0, 6.0)}
    runs = two_knobs(lambda beta, sync, seed: scores[beta][seed], (0, 1), syncs=(5,))
    # Residuals of arms x seeds are +-0.5, so the error of a mean is 1 / 2; the means 1.5 and 4.5 have the variance 4.5.
    kept = 1 - 0.5 / 4.5
    assert shrunken_means(runs, runs.arms) == pytest.approx({0: 3 - 1.5 * kept, 1: 3 + 1.5 * kept})


# What few seeds, missing runs and one family mean


def test_two_seeds_say_what_two_seeds_can_show() -> None:
    findings = find(two_knobs(crossed, (0, 1)))
    said = line(statements(findings), "what 2 seeds can show: ")
    assert "is a hint from 12.7 times its standard error" in said
    error = fmean(abs(one.differences[0] - one.differences[1]) / 2 for one in findings.contrasts("objective"))
    # Two contrasts have a fifth of the 5 % together.
    needed = [stats.t.ppf(1 - 0.025 / count, 1) * error for count in (1, 2 * 5)]
    assert f"typically {needed[0]:.3f}; to be established, {needed[1]:.3f}" in said


def test_no_interval_of_a_share_or_of_a_difference_of_shares_reaches_beyond_what_is_possible(tmp_path: Path) -> None:
    """Two seeds far apart: Student's interval of the mean goes to 5, and that of the difference as well."""
    scores = {(0.1, 0): 0.95, (0.1, 1): 0.55, (4.0, 0): 0.2, (4.0, 1): 0.5}
    sweep = two_knobs(lambda beta, sync, seed: scores[beta, seed], (0, 1), syncs=(5,))
    page = written(sweep, tmp_path).text
    assert "[-1.000, 1.000]" in page
    assert "0.750 (0.950 · 0.550)" in page
    assert "to be established, more than is possible" in page
    assert max(float(figure) for figure in re.findall(r"\[[^]]*?(\d+\.\d+)\]", page)) <= 1


def test_the_same_difference_in_every_seed_has_no_interval_and_no_p_of_its_own(tmp_path: Path) -> None:
    sweep = two_knobs(lambda beta, sync, seed: 0.5 + 0.25 * (beta == 0.1) + 0.125 * seed, (0, 1), syncs=(5,))
    said = line(statements(find(sweep)), "β: ")
    assert said.startswith("β: 0.1 over 4 by 0.250, the same in every seed, Holm p = ")
    assert said.endswith(": hint; on these prompts")
    assert "[0.250, 0.250]" not in written(sweep, tmp_path).text


def test_one_seed_ranks_nothing() -> None:
    words = statements(find(swept(grid(effect=-0.2, seeds=(0,)), seeds=(0,))))
    assert "one seed shows no spread" in words[0]
    assert re.fullmatch(
        r"β: 0.01 over 0.5 by 0\.\d+, one seed shows no spread: no difference shown yet; .*", line(words, "β: ")
    )
    assert not [text for text in words if "[" in text or "seeds can show" in text or "others" in text]


def test_the_question_stands_first_and_the_rest_is_exploratory() -> None:
    findings = find(by_prompt((0, 1, 2, 3), {"knob": SYNC, "first": 5, "second": None}))
    said = statements(findings)
    (asked,) = findings.question
    assert asked.family_size == pytest.approx(1 / 0.6)
    assert asked.holm_p <= asked.family_p / 0.6 + 1e-12  # whatever else is in the report
    of_objective = [text for text in said if text.startswith(("β: ", "sync period: "))]
    assert of_objective[0].startswith("sync period: never over 5 by ")
    assert any("but the question" in text and "are exploratory" in text for text in said)


def test_an_interim_report_claims_nothing_and_names_no_best_arm(tmp_path: Path) -> None:
    """Every effect is far beyond chance; it is not claimed while one run is to come."""
    whole = by_prompt((0, 1, 2, 3), {"knob": BETA})
    assert any(one.is_claim for one in find(whole).sentences)
    last = (whole.runs["arm"] == 5) & (whole.runs["seed"] == 3)
    frame = whole.runs.assign(status=whole.runs["status"].mask(last, "interrupted"))
    interim = replace(whole, runs=frame)
    findings = find(interim)
    assert not any(one.is_claim for one in findings.sentences)
    assert min(one.holm_p for one in findings.sentences if one.holm_p == one.holm_p) < 0.01
    said = statements(findings)
    assert said[0].startswith("interim: 3 of 4 seeds (1 run to come); no claims")
    assert not re.search(": (established|hint)|best of", " ".join(said))
    write_report(interim, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert not re.search('class="strong"|accuracy, without luck|>best<', page)
    # One that failed is not to come; arms that are not chosen yet are, unless the budget is spent.
    failed = replace(whole, runs=whole.runs.assign(status=whole.runs["status"].mask(last, "failed")))
    assert any(one.is_claim for one in find(failed).sentences)
    late = replace(whole, planned_runs=28)
    assert (late.awaited, replace(late, budget_spent=True).awaited) == ((4, 0), (0, 4))


@pytest.mark.parametrize("runs", [NOTHING, grid().assign(status="failed", cause="no memory", objective=math.nan)])
def test_a_sweep_without_a_complete_run_is_reported(tmp_path: Path, runs: pandas.DataFrame) -> None:
    page = written(swept(runs), tmp_path)
    assert "Nothing to compare yet: no run is complete with a known held-out accuracy." in page.text
    assert pandas.read_parquet(tmp_path / "effects.parquet").empty
    assert not page.all("svg")
    assert ("24 of 24 runs: 24 failed" in page.text) == ("failed: no memory" in page.text) == bool(len(runs))


def test_the_page_says_why_the_other_seeds_of_a_pruned_arm_are_left_out_and_what_was_held(tmp_path: Path) -> None:
    frame = grid()
    frame["tokens"] = [(98_000, 104_000)[arm % 2] for arm in frame["arm"]]
    frame.loc[(frame["arm"] == 3) & (frame["seed"] == 1), ["status", "cause", "tokens"]] = ["pruned", "median", 1]
    sweep = swept(frame, hold="tokens")
    write_report(sweep, tmp_path)
    assert line(statements(find(sweep)), "not in the statistics").endswith(
        ": 3 of 24 runs: 2 finished in a pruned arm, 1 pruned"
    )
    page = (tmp_path / "report.html").read_text()
    assert (page.count("its arm was pruned at seed 1"), page.count("0 of 3 (pruned)")) == (2, 2)
    assert "23 finished, 8 settings" in page
    assert "<dt>Held</dt><dd>tokens: 98,000 to 104,000 in the complete runs</dd>" in page


# Words, tables, charts and results agree


def test_each_figure_of_the_table_and_the_charts_is_that_of_the_results(tmp_path: Path) -> None:
    frame = grid(effect=-0.2).assign(completions=960.0, objective_before=0.31)
    frame["run_dir"] = [f"runs/s/runs/arm-{arm:03d}-seed-{seed}" for arm, seed in zip(frame["arm"], frame["seed"], strict=True)]
    sweep = swept(frame)
    rows, page = setting_rows(sweep), (tmp_path / "report.html")
    write_report(sweep, tmp_path)
    text = html.unescape(page.read_text())
    means = frame.groupby("arm")[["objective", "reward", "kl_init_seq"]].mean()
    order = means.sort_values("objective", ascending=False).index
    best = frame[frame["arm"] == order[0]].set_index("seed")["objective"]
    for row, arm in zip(rows, order, strict=True):
        own = frame[frame["arm"] == arm].set_index("seed")["objective"]
        assert row["seeds"] == own.to_dict()
        assert row["reached"] == f"{own.mean():.3f} ({' · '.join(f'{value:.3f}' for value in own)})"
        assert (row["reward"], row["drift"]) == tuple(f"{means.loc[arm, key]:.3f}" for key in ("reward", "kl_init_seq"))
        behind = own - best
        ahead = "" if arm == order[0] else f"{(behind < 0).sum()} of 3 seeds"
        difference = f"{'+' if behind.mean() > 0 else MINUS}{plain(abs(behind.mean()))}"
        assert (row["best_ahead"], row["to_best"]) == (ahead, difference if ahead else "")
        assert row["pages"] == {seed: f"../runs/arm-{arm:03d}-seed-{seed}/index.html" for seed in (0, 1, 2)}
        assert row["completions"] == "960"
        for seed, value in own.items():
            assert f"<title>{row['name']}, seed {seed}: {value:.3f}</title>" in text
        assert f"<title>{row['name']}: mean {own.mean():.3f}</title>" in text
    assert "before training 0.310" in text
    assert {link["href"] for link in Page(page.read_text()).all("a")} >= set(rows[0]["pages"].values())
    of_beta = frame.groupby([BETA, "seed"])["objective"].mean()
    assert [row["seeds"] for row in level_rows(sweep, BETA)] == [
        pytest.approx(of_beta[level].to_dict()) for level in (0.01, 0.5)
    ]


def test_from_five_seeds_on_a_mean_has_its_interval_in_words_and_tables() -> None:
    runs = swept(grid(seeds=range(5)), seeds=range(5))
    table = outcome_table(runs)
    cells = {row[0]: row[table.head.index("held-out accuracy")] for row in table.rows}
    for row in setting_rows(runs):
        interval = stats.ttest_1samp(list(row["seeds"].values()), 0).confidence_interval(0.95)
        assert cells[row["name"]] == row["reached"]
        assert row["reached"] == f"{fmean(row['seeds'].values()):.3f} [{interval.low:.3f}, {interval.high:.3f}]"
    assert setting_rows(runs)[0]["reached"] in statements(find(runs))[0]


def test_a_mean_over_fewer_seeds_than_its_row_says_so() -> None:
    runs = two_knobs(crossed, (0, 1, 2))
    frame = runs.table.assign(probe_kl_init=0.2)
    frame.loc[(frame["arm"] == 1) & (frame["seed"] == 2), "probe_kl_init"] = math.nan
    table = outcome_table(replace(runs, runs=frame))
    found = [row[table.head.index("the same, exact")] for row in table.rows]
    whole = "0.200 (0.200 · 0.200 · 0.200)"
    assert found == [whole, "0.200 (0.200 · 0.200) (2 of 3)", whole, whole]


@pytest.mark.parametrize("primary", [None, {"knob": BETA}, {"knob": SYNC, "first": 5, "second": None}])
def test_every_figure_of_a_statement_stands_in_a_table(primary: dict[str, Any] | None) -> None:
    findings = find(by_prompt((0, 1, 2, 3), primary))
    page = render_page(findings)
    cells = set(re.findall(r"\d+\.\d+", " ".join(re.findall(r"<t[dh]\b.*?</t[dh]>", html.unescape(page), flags=re.DOTALL))))
    said = [text for text in statements(findings) if text.startswith(("best", "β", "sync period", "interaction", "drift"))]
    assert len(said) >= 6
    for text in said:
        assert set(re.findall(r"\d+\.\d+", text.replace("95 %", ""))) <= cells, text
        assert text.endswith("; on these prompts" if text.startswith("drift") else "; on these 40 prompts")


def test_a_level_is_a_mean_of_the_same_runs_at_every_step() -> None:
    frame = grid()
    frame.loc[frame["arm"] == 7, "status"] = "failed"
    sweep = with_curves(frame)
    steps = sweep.steps[(sweep.steps["arm"] != 7) | (sweep.steps["step"] <= 10)].copy()
    steps.loc[steps["arm"] == 3, "reward/mean"] = 100.0  # as arm 7, with the other beta
    (of_beta, *_) = curves(replace(sweep, steps=steps))
    assert of_beta["levels"] == {"β 0.01": 0, "β 0.5": 1}
    expected = [(step, pytest.approx(step / 20)) for step in range(1, 21)]
    assert of_beta["panels"]["reward"] == {0: expected, 1: expected}


def with_curves(frame: pandas.DataFrame) -> SweepRuns:
    """Return runs with their steps."""
    steps = frame[["arm", "seed"]].merge(pandas.DataFrame({"step": range(1, 21)}), how="cross")
    figures = {"kl/ref/drift": steps["step"] / 100, "kl/init/drift": steps["step"] / 50, "reward/mean": steps["step"] / 20}
    return replace(swept(frame), steps=steps.assign(**figures))


def test_the_page_is_one_file_in_the_page_s_own_colours(tmp_path: Path) -> None:
    page = written(with_curves(grid(effect=-0.2)), tmp_path)
    assert not page.all("script") + page.all("link") + page.all("img")
    assert len(page.all("polyline")) == 3 * 3 * 2  # parameters, figures, levels
    assert not [one for one in page.elements if {"fill", "stroke", "style"} & set(one[1])]
    links = {link["href"] for link in page.all("a")}
    assert {link[1:] for link in links if link.startswith("#")} <= {one.get("id") for one in page.all("div")}
    assert "compare/compare.html" in links
    assert [one for one in page.all("details") if "open" in one] == []
    words = re.sub(r"\(.*?\)", "", page.text.partition("How sure")[0])
    assert not re.search(r"\b(arms?|knobs?|objective)\b", words)


def test_the_share_of_the_machine_is_of_all_journalled_training(tmp_path: Path) -> None:
    frame = grid()
    frame.loc[0, "status"] = "failed"
    text = "training steps of all runs: 20 min 00 s of 24 min 00 s that the runs took"
    assert f"{text}; 60 % of the machine's time" in written(swept(frame), tmp_path).text  # 24 * 50 / (1000 * 2)
    unknown = written(replace(swept(frame), elapsed_seconds=0.0), tmp_path).text
    assert text in unknown
    assert "of the machine" not in unknown
