"""Words, tables, pictures and page of a sweep, from frames made by hand."""

import html
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas
import pytest
from matplotlib import pyplot
from matplotlib.container import ErrorbarContainer
from scipy import stats

from grpo_core.sweep.display import p_words, plain
from grpo_core.sweep.report.files import render_page, time_lines, write_report
from grpo_core.sweep.report.pictures import frontier_figure, heat_figure, kl_curves_figure, level_curves_figure
from grpo_core.sweep.report.tables import interaction_table, outcome_table
from grpo_core.sweep.report.words import answer
from grpo_core.sweep.schema import SweepConfig
from grpo_core.sweep.statistics.findings import find, shrunken_means
from grpo_core.sweep.statistics.runs import SweepRuns
from tests.support.pages import Page

BETA, GROUP, SYNC = KNOBS = ("loss.beta", "rollout.group_size", "reference.sync_steps")
NOTHING = pandas.DataFrame(columns=["arm", "seed", "status", "objective", *KNOBS])
Objective = Callable[[float, int | None, int], float]


def swept(frame: pandas.DataFrame, knobs: Sequence[str] = KNOBS, seeds: Sequence[int] = (0, 1, 2), **keys: Any) -> SweepRuns:
    """Return the runs of a frame as a sweep that asked for some keys."""
    values = {"question": "Which β?", "hold": "completions", "runs": {"concurrency": 2}, **keys}
    config = SweepConfig.model_validate({"base": "b", "axes": {knob: [0] for knob in knobs}, "seeds": tuple(seeds), **values})
    return SweepRuns(name="a <sweep>", config=config, runs=frame, elapsed_seconds=1000.0)


def run(arm: int, seed: int, levels: Sequence[Any], objective: float, knobs: Sequence[str] = KNOBS) -> dict[str, Any]:
    """Return a finished run."""
    figures = {
        "objective": objective,
        "accuracy": objective,
        "reward": objective,
        "kl_ref_seq": 1.0 + arm / 10,
        "kl_init_seq": 2.0 + arm / 10,
        "tokens": 4000,
        "train_seconds": 50.0,
        "wall_seconds": 60.0,
    }
    return {"arm": arm, "seed": seed, "status": "finished", "cause": None} | figures | dict(zip(knobs, levels, strict=False))


def grid(effect: float = 0.0, seeds: Sequence[int] = (0, 1, 2)) -> pandas.DataFrame:
    """Return a full grid of eight arms in which beta 0.5 has an effect."""
    random = np.random.default_rng(1)
    of_seed = random.normal(0, 0.05, len(seeds))
    rows = []
    for arm, levels in enumerate(itertools.product((0.01, 0.5), (4, 8), (10, None))):
        for place, seed in enumerate(seeds):
            rows.append(run(arm, seed, levels, 0.6 + effect * (levels[0] == 0.5) + of_seed[place] + random.normal(0, 0.005)))
    return pandas.DataFrame(rows)


def bounded() -> pandas.DataFrame:
    """Return a grid in which arms 0 to 2 are the better, the further they drift, and arm 0 is best of all."""
    frame = grid().assign(drift=1.0)
    for arm, (more, drift) in enumerate([(0.3, 43.0), (0.2, 30.0), (0.1, 20.0)]):
        frame.loc[frame["arm"] == arm, "objective"] += more
        frame.loc[frame["arm"] == arm, "drift"] = drift
    return frame


BOUND = {"objective": {"kl_bound": 10.0}}


def crossed(beta: float, sync: int | None, seed: int) -> float:
    """Return an objective in which beta 0.1 gains 0.008 with syncs and 0.179 without, a little different in each seed."""
    gain, noise = 0.008 if sync == 5 else 0.179, (0.003, -0.001, 0.002, -0.004)[seed]
    return 0.4 + 0.1 * seed + (gain + noise * (1 if sync == 5 else -0.5) if beta == 0.1 else 0.0)


def two_knobs(objective: Objective, seeds: Sequence[int], syncs: Sequence[int | None] = (5, None), **keys: Any) -> SweepRuns:
    """Return two betas crossed with some sync periods."""
    rows = [
        run(arm, seed, (beta, sync), objective(beta, sync, seed), (BETA, SYNC))
        | {"kl_ref_seq": 1 + arm + 0.1 * seed, "kl_init_seq": 2 + arm + 0.1 * seed}
        for arm, (beta, sync) in enumerate(itertools.product((0.1, 4.0), syncs))
        for seed in seeds
    ]
    return swept(pandas.DataFrame(rows), (BETA, SYNC), seeds, hold=None, **keys)


def by_prompt(seeds: Sequence[int], primary: dict[str, Any] | None) -> SweepRuns:
    """Return a sweep with an effect of every knob, known prompt by prompt."""
    random = np.random.default_rng(5)
    runs = two_knobs(crossed, seeds, syncs=(5, 20, None), primary=primary)
    frame = runs.table.assign(kl_init_seq=[2 + arm + random.normal(0, 0.2) for arm in runs.table["arm"]])
    prompts = {
        (row["arm"], row["seed"]): pandas.Series(random.random(40) + row["objective"]) for row in frame.to_dict("records")
    }
    frame["objective"] = [prompts[arm, seed].mean() for arm, seed in zip(frame["arm"], frame["seed"], strict=True)]
    return replace(runs, runs=frame, by_prompt=prompts)


def line(words: Sequence[str], start: str) -> str:
    """Return the only line that starts so."""
    (found,) = [text for text in words if text.startswith(start)]
    return found


# Knobs


def test_a_planted_effect_is_said_with_the_figures_of_the_table(tmp_path: Path) -> None:
    words = write_report(swept(grid(effect=-0.2)), tmp_path)
    effects = pandas.read_parquet(tmp_path / "effects.parquet")
    row = effects[(effects["outcome"] == "objective") & (effects["knob"] == BETA)].iloc[0]
    said = line(words, "β: ")
    assert said.startswith(f"β: 0.01 beats 0.5 by {-row['difference']:.3f} [{-row['high']:.3f}, {-row['low']:.3f}]")
    assert f"Holm {p_words(row['holm_p'])}, at least {plain(-row['together_high'])}" in said
    assert row["holm_p"] < 0.05
    page = html.unescape((tmp_path / "report.html").read_text())
    assert all(f"<li>{text}</li>" in page for text in words)


def test_what_is_not_there_and_what_only_the_correction_hides_are_told_apart() -> None:
    findings = find(swept(grid()))
    words = answer(findings)
    for start in ("β: ", "group size: "):
        assert line(words, start).startswith(f"{start}no difference established with 3 seeds (largest: ")
    (found,) = findings.contrasts("objective", SYNC)
    assert found.estimate.excludes_zero
    assert found.holm_p > 0.05
    assert f"10 over never (alone: {-found.estimate.mean:.4f} [" in line(words, "sync period: not established after correction")


def test_drift_says_which_beta_holds_the_policy_closer() -> None:
    frame = grid()
    frame["kl_init_seq"] = 5 - 3 * (frame[BETA] == 0.5) + 0.01 * frame["seed"] * frame[BETA]
    words = answer(find(swept(frame)))
    assert ": 0.5 has lower drift than 0.01 by 2.99" in line(words, "drift by β (KL to the initial policy, nats per ")
    assert "no difference established" in line(words, "drift by group size ")
    warm = swept(frame.rename(columns={BETA: "rollout.temperature"}), ("rollout.temperature", GROUP, SYNC))
    assert "do not compare" in line(answer(find(warm)), "runs differ in rollout.temperature: their KL figures")


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_many_levels_are_contrasted_in_a_grid_and_associated_where_a_sampler_drew_them(sampler: str) -> None:
    levels = itertools.product([0.1 * level for level in range(1, 10)], (4, 8))
    rows = [
        run(arm, seed, (beta, group, None), 0.5 - 0.1 * beta + 0.01 * seed)
        for arm, (beta, group) in enumerate(levels)
        for seed in (0, 1, 2)
    ]
    findings = find(swept(pandas.DataFrame(rows), sampler=sampler))
    said = line(answer(findings), "β: ")
    assert bool(findings.contrasts("objective", BETA)) == (sampler == "grid")
    if sampler == "random":
        assert said.startswith("β: larger values go with a lower objective (rank correlation -1.00 over 18 arms, Holm p")
        assert "an association, not matched arms: the sampler drew 9 values" in said


def test_an_interaction_is_said_with_the_effect_at_each_level() -> None:
    findings = find(two_knobs(crossed, (0, 1, 2, 3)))
    gains = [[crossed(0.1, sync, seed) - crossed(4.0, sync, seed) for seed in range(4)] for sync in (5, None)]
    said = line(answer(findings), "interaction of β and sync period: β 0.1 minus 4 is ")
    apart = [late - early for early, late in zip(*gains, strict=True)]
    for gain, place in zip((*gains, apart), (" at sync=5", " at sync=never", " (Holm p < 0.0001)"), strict=True):
        interval = stats.ttest_1samp(gain, 0).confidence_interval(0.95)
        assert f"{fmean(gain):.3f} [{interval.low:.3f}, {interval.high:.3f}]{place}" in said
    assert "the effect is larger at sync=never than at sync=5 by " in said
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

    said = line(answer(find(two_knobs(objective, (0, 1)))), "interaction of β and sync period: β 0.1 minus 4 is ")
    assert re.search(r" 0\.050 \[.*\] at sync=5, 0\.180 \[.*\] at sync=never; .* by 0\.130 \[-0\.", said)
    assert "read each level" in said


# The best arm


def test_the_best_arm_and_how_sure_it_is() -> None:
    frame = grid()
    best = frame.groupby("arm")["objective"].agg(["mean", "sem"]).sort_values("mean").iloc[-1]
    first = answer(find(swept(frame)))[0]
    assert first.startswith("best of 8 arms: β=")
    assert f": {best['mean']:.3f} ± {stats.t.ppf(0.975, 2) * best['sem']:.3f} (± half the 95 % interval over 3 seeds)" in first
    frame.loc[frame["arm"] == 3, "objective"] += 1
    frame.loc[(frame["arm"] == 3) & (frame["seed"] == 0), ["status", "cause"]] = ["failed", "no memory"]
    words = answer(find(swept(frame)))
    assert words[0].startswith("best of 7 arms")
    assert line(words, "not ranked").endswith("β=0.01 G=8 sync=never (arm 3)")
    assert line(words, "not in the statistics").endswith("1 run (1 failed)")


def test_an_arm_over_the_bound_on_the_drift_is_never_the_best(tmp_path: Path) -> None:
    frame = bounded()
    best = frame.groupby("arm")["objective"].mean().loc[3:].idxmax()
    free, bound = swept(frame), swept(frame, **BOUND)
    words = write_report(bound, tmp_path)
    assert words[0].startswith(f"best of 5 arms: {bound.arms[best].name} (arm {best}): ")
    assert "5 of 8 arms; over it, so never the best: β=0.01 G=4 sync=10 (arm 0)" in line(words, "within the bound of 10")
    page = (tmp_path / "report.html").read_text()
    assert page.count("(over)") == 3
    assert "<small>kl/init/seq, at most 10, last 10 steps</small>" in page
    joined = [{int(text.get_text()) for text in frontier_figure(one).axes[0].texts} for one in (free, bound)]
    assert 0 in joined[0]
    assert joined[1] <= {3, 4, 5, 6, 7}
    assert answer(find(free))[0].startswith("best of 8 arms: β=0.01 G=4 sync=10 (arm 0): ")


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
    assert line(answer(find(replace(runs, runs=frame))), "arm by arm, after").endswith("better than none of 1 other")


def test_what_the_best_arm_would_be_without_its_luck_by_hand() -> None:
    scores = {0.1: (1.0, 2.0), 4.0: (3.0, 6.0)}
    runs = two_knobs(lambda beta, sync, seed: scores[beta][seed], (0, 1), syncs=(5,))
    # Residuals of arms x seeds are +-0.5, so the error of a mean is 1 / 2; the means 1.5 and 4.5 have the variance 4.5.
    kept = 1 - 0.5 / 4.5
    assert shrunken_means(runs, runs.arms) == pytest.approx({0: 3 - 1.5 * kept, 1: 3 + 1.5 * kept})


# What few seeds, missing runs and one family mean


def test_two_seeds_say_what_two_seeds_can_show() -> None:
    findings = find(two_knobs(crossed, (0, 1)))
    said = line(answer(findings), "what 2 seeds can show: ")
    assert "once a difference is 12.7 times its standard error" in said
    # Two differences d1 and d2 have the mean m and the error |d1 - d2| / 2: 12.7 |d1 - d2| / 2 < m.
    assert 2 / stats.t.ppf(0.975, 1) == pytest.approx(0.157, abs=1e-3)
    assert "lie within 16 % of each other" in said
    errors = [abs(one.differences[0] - one.differences[1]) / 2 for one in findings.contrasts("objective")]
    # Two of them have a fifth of the 5 % together.
    needed = [stats.t.ppf(1 - 0.025 / count, 1) * fmean(errors) for count in (1, 2 * 5)]
    assert f"between levels that is typically a difference of {needed[0]:.3f}, and of {needed[1]:.3f} to stand" in said


def test_one_seed_ranks_nothing() -> None:
    words = answer(find(swept(grid(effect=-0.2, seeds=(0,)), seeds=(0,))))
    assert "one seed shows no spread" in words[0]
    assert "nothing is established (largest difference 0.01 over 0.5 by 0." in line(words, "β: ")
    assert not [text for text in words if "±" in text or "seeds can show" in text or text.startswith("arm by arm")]


def test_the_question_stands_first_and_the_rest_is_exploratory() -> None:
    findings = find(by_prompt((0, 1, 2, 3), {"knob": SYNC, "first": 5, "second": None}))
    said = answer(findings)
    assert said[0].startswith("the question, sync period 5 or never: ")
    (asked,) = findings.question
    assert asked.family_size == pytest.approx(1 / 0.6)
    assert asked.holm_p <= asked.family_p / 0.6 + 1e-12  # whatever else is in the report
    assert " 5 and never" not in line(said, "sync period: ")
    assert any("but the question" in text and "are exploratory" in text for text in said)
    assert line(answer(find(by_prompt((0, 1, 2, 3), {"knob": BETA}))), "β: ") == "β: answered by the question"


def test_an_interim_report_claims_nothing_and_names_no_best_arm(tmp_path: Path) -> None:
    """Every effect is far beyond chance; it is not claimed while one run is to come."""
    whole = by_prompt((0, 1, 2, 3), {"knob": BETA})
    assert any(one.is_claim for one in find(whole).sentences)
    last = (whole.runs["arm"] == 5) & (whole.runs["seed"] == 3)
    frame = whole.runs.assign(status=whole.runs["status"].mask(last, "interrupted"))
    interim = replace(whole, runs=frame, resume="grpo sweep --resume 'my sweep'")
    findings = find(interim)
    assert not any(one.is_claim for one in findings.sentences)
    assert min(one.holm_p for one in findings.sentences if one.holm_p == one.holm_p) < 0.01
    said = write_report(interim, tmp_path)
    assert said[0].startswith("interim: 3 of 4 seeds (1 run to come); no claims")
    assert not re.search(" beats |has lower drift|best of|arm by arm", " ".join(said))
    assert "1 interrupted); `grpo sweep --resume 'my sweep'`" in line(said, "not in the statistics")
    page = (tmp_path / "report.html").read_text()
    assert not re.search('class="strong"|objective, without luck', page)
    # One that failed is not to come; arms that are not chosen yet are, unless the budget is spent.
    failed = replace(whole, runs=whole.runs.assign(status=whole.runs["status"].mask(last, "failed")))
    assert any(one.is_claim for one in find(failed).sentences)
    late = replace(whole, planned_runs=28)
    assert (late.awaited, replace(late, budget_spent=True).awaited) == ((4, 0), (0, 4))


@pytest.mark.parametrize("runs", [NOTHING, grid().assign(status="failed", cause="no memory", objective=math.nan)])
def test_a_sweep_without_a_complete_run_is_reported(tmp_path: Path, runs: pandas.DataFrame) -> None:
    words = write_report(swept(runs), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "nothing to compare yet" in words[0]
    assert pandas.read_parquet(tmp_path / "effects.parquet").empty
    assert not list(tmp_path.glob("*.png"))
    assert ("24 runs (24 failed)" in words[-1]) == ("failed: no memory" in page) == bool(len(runs))


def test_the_page_says_why_the_other_seeds_of_a_pruned_arm_are_left_out_and_what_was_held(tmp_path: Path) -> None:
    frame = grid()
    frame["tokens"] = [(98_000, 104_000)[arm % 2] for arm in frame["arm"]]
    frame.loc[(frame["arm"] == 3) & (frame["seed"] == 1), ["status", "cause", "tokens"]] = ["pruned", "median", 1]
    words = write_report(swept(frame, hold="tokens"), tmp_path)
    assert line(words, "not in the statistics").endswith("3 runs (2 finished in a pruned arm, 1 pruned)")
    page = (tmp_path / "report.html").read_text()
    assert (page.count("its arm was pruned at seed 1"), page.count("0 of 3 (pruned)")) == (2, 2)
    assert "23 finished, 8 arms" in page
    assert "<dt>Held</dt><dd>tokens: 98,000 to 104,000 in the complete runs</dd>" in page


# Words, tables and pictures agree


def test_a_mean_has_the_same_plus_minus_in_words_tables_and_pictures() -> None:
    runs = two_knobs(crossed, (0, 1, 2))
    table = outcome_table(runs)
    cells = {row[0]: row[table.head.index("objective")] for row in table.rows}
    for arm, of_seed in runs.values["objective"].items():
        interval = stats.ttest_1samp(list(of_seed.values()), 0).confidence_interval(0.95)
        assert cells[str(arm)] == f"{fmean(of_seed.values()):.3f} ± {(interval.high - interval.low) / 2:.3f}"
    heat = [text.get_text().replace("\n", " ") for text in heat_figure(runs, BETA, SYNC).axes[0].texts]
    assert heat == [cells[str(arm.number)] for arm in runs.arms]
    (best,) = table.strong
    assert f": {cells[str(best)]} (± half the 95 % interval over 3 seeds); " in answer(find(runs))[0]
    heights = []
    for bar in (one for one in frontier_figure(runs).axes[0].containers if isinstance(one, ErrorbarContainer)):
        (segment,) = bar.lines[2][1].get_segments()
        heights.append(f"{fmean(segment[:, 1]):.3f} ± {(segment[1, 1] - segment[0, 1]) / 2:.3f}")
    assert heights == [cells[str(arm.number)] for arm in runs.arms]


def test_a_mean_over_fewer_seeds_than_its_row_says_so() -> None:
    runs = two_knobs(crossed, (0, 1, 2))
    frame = runs.table.assign(probe_kl_init=0.2)
    frame.loc[(frame["arm"] == 1) & (frame["seed"] == 2), "probe_kl_init"] = math.nan
    table = outcome_table(replace(runs, runs=frame))
    found = [row[table.head.index("the same, exact")] for row in table.rows]
    assert found == ["0.200 ± 0.000", "0.200 ± 0.000 (2 of 3)", "0.200 ± 0.000", "0.200 ± 0.000"]


@pytest.mark.parametrize("primary", [None, {"knob": BETA}, {"knob": SYNC, "first": 5, "second": None}])
def test_every_figure_of_a_sentence_stands_in_a_table(primary: dict[str, Any] | None) -> None:
    findings = find(by_prompt((0, 1, 2, 3), primary))
    page = render_page(findings, (), {})
    cells = set(re.findall(r"\d+\.\d+", " ".join(re.findall(r"<t[dh]\b.*?</t[dh]>", html.unescape(page), flags=re.DOTALL))))
    starts = ("the question", "best", "arm by arm", "β", "sync period", "interaction", "drift")
    said = [text for text in answer(findings) if text.startswith(starts)]
    assert len(said) >= 6
    for text in said:
        assert set(re.findall(r"\d+\.\d+", text.replace("95 %", ""))) <= cells, text
        prompts = "these prompts" if text.startswith("drift") else "these 40 prompts"
        assert text.endswith(f"; on {prompts}") == (" [" in text or "±" in text)


# Pictures and page


def with_curves(frame: pandas.DataFrame) -> SweepRuns:
    """Return runs with their steps, and a sync after step 10 of the even arms."""
    sweep = swept(frame)
    steps = frame[["arm", "seed"]].merge(pandas.DataFrame({"step": range(1, 21)}), how="cross")
    figures = {"kl/ref/drift": steps["step"] / 100, "kl/init/drift": steps["step"] / 50, "reward/mean": steps["step"] / 20}
    syncs = frame.loc[frame["arm"] % 2 == 0, ["arm", "seed"]].assign(step=10)
    return replace(sweep, steps=steps.assign(**figures), syncs=syncs)


def test_curves_show_each_run_and_mark_syncs() -> None:
    figure = kl_curves_figure(with_curves(grid()))
    titled = [axes for axes in figure.axes if axes.get_title()]
    lines = [[line for line in axes.lines if len(line.get_xdata()) == 20] for axes in titled]
    assert [len(of_arm) for of_arm in lines] == [6] * 8  # two KLs of three seeds
    marks = [[line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"] for axes in titled]
    assert marks == [[10.5], []] * 4
    assert pyplot.get_fignums() == []


def test_a_level_is_a_mean_of_the_same_runs_at_every_step() -> None:
    frame = grid()
    frame.loc[frame["arm"] == 7, "status"] = "failed"
    sweep = with_curves(frame)
    steps = sweep.steps[(sweep.steps["arm"] != 7) | (sweep.steps["step"] <= 10)].copy()
    steps.loc[steps["arm"] == 3, "reward/mean"] = 100.0  # as arm 7, with the other beta
    figure = level_curves_figure(replace(sweep, steps=steps), BETA)
    assert figure is not None
    (axes,) = [axes for axes in figure.axes if axes.get_ylabel() == "reward"]
    assert [list(line.get_ydata()) for line in axes.lines] == [pytest.approx(np.arange(1, 21) / 20)] * 2


def test_the_page_is_one_file_that_says_what_its_pictures_show(tmp_path: Path) -> None:
    write_report(with_curves(grid(effect=-0.2)), tmp_path, comparison="compare/compare.html")
    page = Page((tmp_path / "report.html").read_text())
    images, links = page.all("img"), [link["href"] for link in page.all("a")]
    assert len(images) == len(list(tmp_path.glob("*.png"))) == 12
    assert all(image["src"].startswith("data:image/png;base64,") and image["alt"] for image in images)
    assert {link[1:] for link in links if link.startswith("#")} <= {section.get("id") for section in page.all("section")}
    assert "compare/compare.html" in links
    assert not page.all("script") + page.all("link")


def test_the_share_of_the_machine_is_of_all_journalled_training() -> None:
    frame = grid()
    frame.loc[0, "status"] = "failed"
    assert "60% = 20 min 00 s / (16 min 40 s x 2 at a time)" in time_lines(swept(frame))[1]  # 24 * 50 / (1000 * 2)
    assert len(time_lines(replace(swept(frame), elapsed_seconds=0.0))) == 1
