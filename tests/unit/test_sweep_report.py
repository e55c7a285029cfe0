"""Words, pictures and page of a sweep, from frames made by hand."""

import html
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from matplotlib import pyplot
from scipy import stats

from grpo_core.sweep.display import p_words, plain
from grpo_core.sweep.measures import OUTCOMES
from grpo_core.sweep.report.drift_pictures import frontier_figure, kl_curves_figure, level_curves_figure
from grpo_core.sweep.report.files import SweepReport, write_report
from grpo_core.sweep.report.page import time_lines
from grpo_core.sweep.report.words import answer
from grpo_core.sweep.statistics.findings import check_bound, find
from grpo_core.sweep.statistics.runs import SweepFacts, SweepRuns

KNOBS = ("loss.beta", "rollout.group_size", "reference.sync_steps")
FACTS = SweepFacts(
    name="a <sweep>",
    question="Which β?",
    knobs=KNOBS,
    seeds=(0, 1, 2),
    objective="held-out pass@1",
    hold="completions",
    sampler="grid",
    concurrency=2,
    elapsed_seconds=1000.0,
    notes=("a note of the plan",),
    planned_runs=None,
)
NOTHING = pandas.DataFrame()


def run(arm: int, seed: int, levels: Sequence[Any], objective: float) -> dict[str, Any]:
    """Return a finished run with every column."""
    figures = {
        "objective": objective,
        "accuracy": objective,
        "accuracy_before": 0.3,
        "reward": objective - 0.1,
        "kl_ref": 0.1,
        "kl_init": 0.2,
        "kl_ref_seq": 1.0 + arm / 10,
        "kl_init_seq": 2.0 + arm / 10,
        "probe_kl_init": math.nan,
        "zero_std_frac": 0.5,
        "advantage_rms_factor": math.sqrt(1 - 1 / levels[1]) if len(levels) > 1 and levels[1] else math.nan,
        "effective_beta": levels[0] + seed,
        "steps": 20,
        "tokens": 4000,
        "completions": 400,
        "train_seconds": 50.0,
        "wall_seconds": 60.0,
    }
    keys = {"arm": arm, "seed": seed, "status": "finished", "cause": None, "run_dir": f"runs/{arm}", "mlflow_run_id": None}
    return keys | figures | dict(zip(KNOBS, levels, strict=False))


def grid(effect: float = 0.0, seeds: Sequence[int] = (0, 1, 2), betas: Sequence[float] = (0.01, 0.5)) -> pandas.DataFrame:
    """Return a full grid in which beta 0.5 has an effect."""
    random = np.random.default_rng(1)
    of_seed = random.normal(0, 0.05, len(seeds))
    rows = []
    for arm, levels in enumerate(itertools.product(betas, (4, 8), (10, None))):
        for place, seed in enumerate(seeds):
            rows.append(run(arm, seed, levels, 0.6 + effect * (levels[0] == 0.5) + of_seed[place] + random.normal(0, 0.005)))
    return pandas.DataFrame(rows)


def curves(runs: pandas.DataFrame) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Return the steps and syncs of runs."""
    keys = list(zip(runs["arm"], runs["seed"], strict=True))
    steps = [
        {
            "arm": arm,
            "seed": seed,
            "step": step,
            "kl/ref/drift": step / 100,
            "kl/init/drift": step / 50,
            "reward/mean": step / 20,
        }
        for arm, seed in keys
        for step in range(1, 21)
    ]
    syncs = [{"arm": arm, "seed": seed, "step": 10, "kl_before": 0.1, "kl_after": 0.0} for arm, seed in keys if arm % 2 == 0]
    return pandas.DataFrame(steps), pandas.DataFrame(syncs)


def report(folder: Path, runs: pandas.DataFrame, facts: SweepFacts = FACTS) -> SweepReport:
    """Write a report without curves, which take the longest to draw."""
    return write_report(facts, runs, NOTHING, NOTHING, folder)


def words_of(runs: pandas.DataFrame, facts: SweepFacts = FACTS) -> tuple[str, ...]:
    """Return the answer alone, which needs no pictures."""
    return answer(find(SweepRuns(facts, runs), OUTCOMES))


def line(words: Sequence[str], start: str) -> str:
    """Return the only line that starts so."""
    (found,) = [text for text in words if text.startswith(start)]
    return found


class Page(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


# Words


def test_a_planted_effect_is_said_with_the_figures_of_the_table(tmp_path: Path) -> None:
    written = report(tmp_path, grid(effect=-0.2))
    effects = pandas.read_parquet(written.tables["effects"])
    row = effects[(effects["outcome"] == "objective") & (effects["knob"] == "loss.beta")].iloc[0]
    said = line(written.answer, "β: ")
    assert said.startswith(f"β: 0.01 beats 0.5 by {-row['difference']:.3f} [{-row['high']:.3f}, {-row['low']:.3f}]")
    assert f"Holm {p_words(row['holm_p'])}, at least {plain(-row['together_high'])} with all comparisons at once" in said
    assert row["holm_p"] < 0.05
    page = html.unescape(written.page.read_text())
    assert all(f"<li>{text}</li>" in page for text in written.answer)


def test_a_planted_null_is_no_difference_established() -> None:
    words = words_of(grid())
    for start in ("β: ", "group size: "):
        assert line(words, start).startswith(f"{start}no difference established with 3 seeds (largest: ")


def test_a_difference_that_only_the_correction_hides_is_called_not_established() -> None:
    frame = grid()
    effects = find(SweepRuns(FACTS, frame), OUTCOMES).effects["objective"]
    (found,) = effects.of("reference.sync_steps")
    assert found.estimate.low > 0 or found.estimate.high < 0
    assert found.holm_p > 0.05
    sentence = line(words_of(frame), "sync period: not established after correction: 10 over never ")
    alone = f"(alone: {-found.estimate.mean:.4f} [{-found.estimate.high:.4f}, {-found.estimate.low:.4f}], "
    assert sentence.endswith(f" 10 over never {alone}Holm {p_words(found.holm_p)}); on these prompts")


def test_the_best_arm_and_how_sure_it_is() -> None:
    frame = grid()
    best = frame.groupby("arm")["objective"].agg(["mean", "sem"]).sort_values("mean").iloc[-1]
    first = words_of(frame)[0]
    assert first.startswith("best of 8 arms: β=")
    assert f": {best['mean']:.3f} ± {stats.t.ppf(0.975, 2) * best['sem']:.3f} (± half the 95 % interval over 3 seeds)" in first


BOUNDED = replace(FACTS, kl_bound=10.0)


def bounded() -> pandas.DataFrame:
    """Return a grid in which arms 0 to 2 are the better, the further they drift, and arm 0 is best of all."""
    frame = grid()
    frame["drift"] = 1.0
    for arm, (more, drift) in enumerate([(0.3, 43.0), (0.2, 30.0), (0.1, 20.0)]):
        frame.loc[frame["arm"] == arm, "objective"] += more
        frame.loc[frame["arm"] == arm, "drift"] = drift
    return frame


def test_an_arm_over_the_bound_on_the_drift_is_never_the_best(tmp_path: Path) -> None:
    frame = bounded()
    means = frame.groupby("arm")["objective"].mean()
    best = means.loc[3:].idxmax()
    written = report(tmp_path, frame, BOUNDED)
    name = SweepRuns(BOUNDED, frame).arms[best].name
    assert written.answer[0].startswith(f"best of 5 arms: {name} (arm {best}): {means[best]:.3f} ±")
    assert line(written.answer, "over the bound").startswith(
        "over the bound of 10 (kl/init/seq): 3 arms, among them β=0.01 G=4 sync=10 (arm 0) with the highest objective "
        f"{means[0]:.3f} at 43.0 nats"
    )
    assert "(arm 0)" not in line(written.answer, "best of")
    assert not any("(arm 0)" in text for text in written.answer if text.startswith("arm by arm"))
    page = written.page.read_text()
    assert page.count("(over)") == 3
    assert "<small>kl/init/seq, at most 10, last 10 steps</small>" in page
    # Without a bound the same frame has another best arm, and no column.
    free = report(tmp_path, frame)
    assert free.answer[0].startswith("best of 8 arms: β=0.01 G=4 sync=10 (arm 0): ")
    assert "kl/init/seq" not in free.page.read_text()


def test_the_bound_is_on_the_mean_of_an_arm_and_an_unknown_drift_does_not_keep_it() -> None:
    frame = bounded()
    # Mean 6, upper end 6 + 2.92 x 1 / sqrt(3) = 7.7; of arm 7 the mean keeps the bound and the upper end, 13.0, does not.
    frame.loc[frame["arm"] == 0, "drift"] = [5.0, 6.0, 7.0]
    frame.loc[frame["arm"] == 7, "drift"] = [7.0, 8.0, 99.0]
    frame.loc[(frame["arm"] == 1) & (frame["seed"] == 2), "drift"] = math.nan
    # An incomplete run neither helps nor hurts.
    frame.loc[(frame["arm"] == 7) & (frame["seed"] == 2), ["status", "drift"]] = ["failed", 99.0]
    check = check_bound(SweepRuns(BOUNDED, frame))
    assert [arm.number for arm in check.over] == [1, 2, 7]
    assert check.upper[0] == pytest.approx(6 + stats.t.ppf(0.95, 2) / math.sqrt(3))
    assert math.isnan(check.drifts[1])
    assert [arm.number for arm in check.within] == [0, 3, 4, 5, 6]
    assert len(check_bound(SweepRuns(FACTS, frame)).within) == 8
    words = words_of(frame, BOUNDED)
    assert words[0].startswith("best of 5 arms: β=0.01 G=4 sync=10 (arm 0): ")
    said = line(words, "over the bound")
    assert "3 arms, without changing which arm is the best; the drift of 1 arm is unknown, which counts as over it" in said


def test_the_frontier_joins_arms_within_the_bound_only() -> None:
    frame = bounded()
    numbers = {}
    for facts in (FACTS, BOUNDED):
        axes = frontier_figure(SweepRuns(facts, frame)).axes[0]
        numbers[facts.kl_bound] = {int(text.get_text()) for text in axes.texts}
    assert 0 in numbers[None]
    assert numbers[10.0]
    assert not numbers[10.0] & {0, 1, 2}


def test_an_arm_with_fewer_seeds_is_not_ranked() -> None:
    frame = grid()
    frame.loc[(frame["arm"] == 3), "objective"] += 1
    frame.loc[(frame["arm"] == 3) & (frame["seed"] == 0), ["status", "cause"]] = ["pruned", "median"]
    words = words_of(frame)
    assert words[0].startswith("best of 7 arms")
    assert line(words, "1 arm with fewer").endswith("is not ranked: β=0.01 G=8 sync=never (arm 3)")
    missing = line(words, "not in the statistics")
    assert missing.startswith(
        "not in the statistics: 3 runs (2 finished in a pruned arm, 1 pruned); 1 arm was pruned and leaves"
    )


def test_the_page_says_why_the_other_seeds_of_a_pruned_arm_are_left_out(tmp_path: Path) -> None:
    frame = grid()
    frame.loc[(frame["arm"] == 3) & (frame["seed"] == 1), ["status", "cause"]] = ["pruned", "median"]
    page = report(tmp_path, frame).page.read_text()
    assert page.count("its arm was pruned at seed 1") == 2
    assert page.count("0 of 3 (pruned)") == 2
    assert "23 finished, 8 arms" in page


def test_an_interrupted_run_is_incomplete_and_can_be_resumed(tmp_path: Path) -> None:
    frame = grid()
    frame.loc[(frame["arm"] == 3) & (frame["seed"] == 1), "status"] = "interrupted"
    written = report(tmp_path, frame, replace(FACTS, resume="grpo sweep --resume 'my sweep'"))
    assert written.answer[0] == "interim: 2 of 3 seeds (1 run to come); no claims are made before all planned seeds are in"
    assert not any(line.startswith("best of") for line in written.answer)
    assert line(written.answer, "not in the statistics").endswith(
        "1 run (1 interrupted); interrupted runs are not running now; `grpo sweep --resume 'my sweep'` resumes them"
    )
    assert "interrupted: begun, not ended, and not running now" in written.page.read_text()


def test_one_seed_ranks_nothing(tmp_path: Path) -> None:
    written = report(tmp_path, grid(effect=-0.2, seeds=(0,)), replace(FACTS, seeds=(0,)))
    assert written.answer[0].endswith("; one seed shows no spread, so it ranks no arms")
    assert line(written.answer, "β: ").startswith(
        "β: one seed shows no spread, so nothing is established (largest difference 0.01 over 0.5 by 0."
    )
    assert not [text for text in written.answer if "±" in text or "seeds can show" in text or text.startswith("arm by arm")]
    assert pandas.read_parquet(written.tables["effects"])[["low", "p", "holm_p", "moderated_p"]].isna().all(axis=None)


def test_identical_and_constant_differences_are_called_that() -> None:
    frame = grid()
    frame["objective"] = 0.5 + 0.1 * (frame["loss.beta"] == 0.5) + 0.01 * frame["seed"]
    words = words_of(frame)
    assert line(words, "group size: ") == "group size: identical in every seed between 4 and 8"
    assert "0.100 [0.100, 0.100], the same in every seed (an interval of width 0, the t test's p is 0)" in line(words, "β: ")


@pytest.mark.parametrize(
    ("hold", "measured", "said"),
    [
        ("tokens", [98_000, 104_000], "held: tokens, so arms may differ in their steps and prompts; measured, "),
        ("tokens", [98_000, 104_000], "measured, the runs generated between 98,000 and 104,000 tokens (6 % apart)"),
        ("tokens", [98_000, 98_100], "between 98,000 and 98,100 tokens (0.1 % apart)"),
        ("tokens", [4000, 4000], "; measured, every run generated 4,000 tokens"),
        ("tokens", [math.nan, math.nan], "; how many tokens the runs generated was not measured"),
        ("completions", [400, 500], "prompts a step; measured, the runs had between 400 and 500 completions (25 % apart)"),
    ],
)
def test_what_was_held_is_measured_on_complete_runs(hold: str, measured: list[float], said: str) -> None:
    (confound, _) = [
        text for text in words_of(held(hold, measured), replace(FACTS, hold=hold)) if text.startswith("confound: ")
    ]
    assert said in confound


def held(hold: str, measured: list[float]) -> pandas.DataFrame:
    """Return runs of which one failed early and generated next to nothing, which says nothing about those that are compared."""
    frame = grid()
    frame[hold] = [measured[arm % 2] for arm in frame["arm"]]
    frame.loc[0, ["status", hold]] = ["failed", 1]
    return frame


def test_arms_at_different_temperatures_have_kl_figures_that_do_not_compare() -> None:
    frame = grid().rename(columns={"loss.beta": "rollout.temperature"})
    knobs = tuple("rollout.temperature" if knob == "loss.beta" else knob for knob in FACTS.knobs)
    said = "confound: runs differ in rollout.temperature: their KL figures are of policies at different temperatures"
    assert [text for text in words_of(frame, replace(FACTS, knobs=knobs)) if text.startswith(said)]
    assert not [text for text in words_of(grid()) if "KL figures" in text]


def test_drift_says_which_beta_holds_the_policy_closer() -> None:
    frame = grid()
    frame["kl_init_seq"] = 5 - 3 * (frame["loss.beta"] == 0.5) + 0.01 * frame["seed"] * frame["loss.beta"]
    words = words_of(frame)
    unit = "(KL to the initial policy, nats per completion)"
    assert line(words, "drift by β ").startswith(f"drift by β {unit}: 0.5 has lower drift than 0.01 by 2.99")
    # Every swept parameter has its line, whatever the question was about.
    assert line(words, "drift by group size ") == f"drift by group size {unit}: identical in every seed between 4 and 8"
    assert line(words, "drift by sync period ").endswith("identical in every seed between 10 and never")


def test_no_finished_run_is_said_and_the_page_is_written(tmp_path: Path) -> None:
    written = report(tmp_path, grid().assign(status="failed", cause="no memory", objective=math.nan))
    assert written.answer[0] == "no run finished with a known objective: nothing can be compared"
    assert "24 runs (24 failed)" in written.answer[1]
    assert "failed: no memory" in written.page.read_text()


@pytest.mark.parametrize("runs", [NOTHING, grid().iloc[:0], grid().assign(status="missing", objective=math.nan)])
def test_a_sweep_of_which_no_run_has_been_begun_is_reported(tmp_path: Path, runs: pandas.DataFrame) -> None:
    written = report(tmp_path, runs)
    assert written.answer[0] == "no run has been begun: there is nothing to compare yet"
    assert written.answer[0] in written.page.read_text()
    assert pandas.read_parquet(written.tables["effects"]).empty
    assert written.figures == ()


def test_sampled_arms_are_an_association(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [
        run(arm, seed, (beta, 2 + arm, None), 0.7 - 0.1 * math.log10(beta / 1e-4) + 0.001 * seed)
        for arm, beta in enumerate(10 ** random.uniform(-4, 0, 12))
        for seed in (0, 1)
    ]
    facts = replace(FACTS, seeds=(0, 1), sampler="random")
    written = report(tmp_path, pandas.DataFrame(rows), facts)
    said = line(written.answer, "β: ")
    assert said.startswith("β: larger values go with a lower objective (rank correlation -1.00 over 12 arms, Holm p")
    assert said.endswith("an association, not matched arms: no two arms agree in all other knobs")
    assert "effect_loss_beta.png" in [figure.name for figure in written.figures]


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_more_than_eight_levels_are_contrasted_in_a_grid_and_associated_where_a_sampler_drew_them(
    tmp_path: Path, sampler: str
) -> None:
    rows = [
        run(arm, seed, (beta, group, None), 0.5 + 0.01 * seed + 0.001 * arm * (1 + seed))
        for arm, (beta, group) in enumerate(itertools.product([0.1 * level for level in range(1, 10)], (4, 8)))
        for seed in (0, 1, 2)
    ]
    written = report(tmp_path, pandas.DataFrame(rows), replace(FACTS, sampler=sampler))
    effects = pandas.read_parquet(written.tables["effects"])
    of_beta = effects[(effects["outcome"] == "objective") & (effects["knob"] == "loss.beta")]
    page = written.page.read_text()
    assert "No two arms agree" not in page
    assert ("heat_loss_beta_rollout_group_size.png" in [figure.name for figure in written.figures]) == (sampler == "grid")
    if sampler == "grid":
        assert list(of_beta["kind"]) == ["contrast"] * 36
        assert "association" not in line(written.answer, "β: ")
    else:
        assert list(of_beta["kind"]) == ["association"]
        assert "not matched arms: the sampler drew 9 values of it, more than 8" in line(written.answer, "β: ")
        assert "The sampler drew 9 values of it, more than 8, so this is an association over arms" in page


# Files


def test_the_page_is_one_file_that_says_what_its_pictures_show(tmp_path: Path) -> None:
    frame = grid()
    written = write_report(FACTS, frame, *curves(frame), tmp_path)
    page = Page(written.page.read_text())
    assert page.open == []
    assert len(page.all("img")) == len(written.figures) > 8
    assert all((image["src"] or "").startswith("data:image/png;base64,") and image["alt"] for image in page.all("img"))
    assert page.all("script") == page.all("link") == []
    anchors = {section.get("id") for section in page.all("section")}
    assert {(link["href"] or "")[1:] for link in page.all("a")} == anchors - {None}
    assert len(page.all("caption")) == len(page.all("table")) > 5
    assert "prefers-color-scheme: dark" in written.page.read_text()
    assert "a &lt;sweep&gt;" in written.page.read_text()
    assert pyplot.get_fignums() == []
    assert all(figure.read_bytes().startswith(b"\x89PNG") and figure.parent == tmp_path for figure in written.figures)


# Figures


def test_kl_curves_have_a_panel_an_arm_with_its_seeds_and_syncs() -> None:
    frame = grid()
    sweep = SweepRuns(FACTS, frame)
    figure = kl_curves_figure(sweep, *curves(frame))
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == [f"{arm.number}: {arm.name}" for arm in sweep.arms]
    # Three seeds with two curves each, and the one sync of even arms.
    assert [len(axes.lines) for axes in panels] == [7, 6] * 4
    assert list(panels[0].lines[-1].get_xdata()) == [10.5, 10.5]


def test_a_level_does_not_rise_where_its_worst_run_is_pruned() -> None:
    frame = grid()
    steps, _ = curves(frame)
    frame.loc[frame["arm"] == 0, ["status", "steps"]] = "pruned", 10
    worst = steps["arm"] == 0
    steps.loc[worst, "reward/mean"] = -1.0
    steps = steps[~worst | (steps["step"] <= 10)]
    figure = level_curves_figure(SweepRuns(FACTS, frame), steps, "loss.beta")
    assert figure is not None
    (axes,) = [axes for axes in figure.axes if axes.get_ylabel() == "reward"]
    expected = np.arange(1, 21) / 20
    assert [list(line.get_ydata()) for line in axes.lines] == [pytest.approx(expected)] * 2


def test_levels_are_drawn_at_the_settings_that_all_of_them_have_complete() -> None:
    frame = grid()
    steps, _ = curves(frame)
    frame.loc[frame["arm"] == 7, ["status", "steps"]] = "failed", 10
    partner = steps["arm"] == 3  # as arm 7, with the other beta
    steps.loc[partner, "reward/mean"] = 100.0
    figure = level_curves_figure(SweepRuns(FACTS, frame), steps, "loss.beta")
    assert figure is not None
    (axes,) = [axes for axes in figure.axes if axes.get_ylabel() == "reward"]
    assert [list(line.get_ydata()) for line in axes.lines] == [pytest.approx(np.arange(1, 21) / 20)] * 2


def test_the_share_of_the_machine_is_of_all_journalled_training() -> None:
    frame = grid()
    frame.loc[0, "status"] = "failed"
    assert "60% = 20 min 00 s / (16 min 40 s x 2 at a time)" in time_lines(SweepRuns(FACTS, frame))[1]  # 24 * 50 / (1000 * 2)
    assert len(time_lines(SweepRuns(replace(FACTS, elapsed_seconds=None), frame))) == 1
