"""What a sweep's answer must not hide: interactions, what only the correction takes away, and how little few seeds can show."""

import html
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas
import pytest
from matplotlib.container import ErrorbarContainer
from scipy import stats

from grpo_core.sweep.measures import OUTCOMES
from grpo_core.sweep.report.cells import interaction_table, outcome_table
from grpo_core.sweep.report.drift_pictures import frontier_figure
from grpo_core.sweep.report.files import write_report
from grpo_core.sweep.report.page import render_page
from grpo_core.sweep.report.pictures import heat_figure
from grpo_core.sweep.report.words import answer
from grpo_core.sweep.statistics.findings import best_arm, find, shrunken_means
from grpo_core.sweep.statistics.runs import Primary, SweepFacts, SweepRuns

BETA, SYNC = "loss.beta", "reference.sync_steps"
Objective = Callable[[float, int | None, int], float]
NOISE = (0.003, -0.001, 0.002, -0.004)
"""Of four seeds."""


def facts(seeds: Sequence[int]) -> SweepFacts:
    """Return the facts of a sweep over two knobs."""
    return SweepFacts(
        name="s", question="", knobs=(BETA, SYNC), seeds=tuple(seeds), objective="pass@1", hold=None, sampler="grid",
        concurrency=1, elapsed_seconds=None, notes=(), planned_runs=None,
    )  # fmt: skip


def sweep(objective: Objective, seeds: Sequence[int], syncs: Sequence[int | None] = (5, None)) -> SweepRuns:
    """Return two betas crossed with some sync periods."""
    rows = [
        {"arm": arm, "seed": seed, "status": "finished", BETA: beta, SYNC: sync, "objective": objective(beta, sync, seed)}
        | {"reward": objective(beta, sync, seed), "kl_ref_seq": 1 + arm + 0.1 * seed, "kl_init_seq": 2 + arm + 0.1 * seed}
        for arm, (beta, sync) in enumerate(itertools.product((0.1, 4.0), syncs))
        for seed in seeds
    ]
    return SweepRuns(facts(seeds), pandas.DataFrame(rows))


def words(runs: SweepRuns) -> tuple[str, ...]:
    """Return the answer."""
    return answer(find(runs, OUTCOMES))


def line(runs: SweepRuns, start: str) -> str:
    """Return the only line of the answer that starts so."""
    (found,) = [text for text in words(runs) if text.startswith(start)]
    return found


def crossed(beta: float, sync: int | None, seed: int) -> float:
    """Return an objective in which beta 0.1 gains 0.008 with syncs and 0.179 without, a little different in each seed."""
    gain = 0.008 if sync == 5 else 0.179
    return 0.4 + 0.1 * seed + (gain + NOISE[seed] * (1 if sync == 5 else -0.5) if beta == 0.1 else 0.0)


# Interactions


def test_an_interaction_is_said_with_the_effect_at_each_level() -> None:
    runs = sweep(crossed, (0, 1, 2, 3))
    noise = NOISE
    gains = {"sync=5": [0.008 + one for one in noise], "sync=never": [0.179 - one / 2 for one in noise]}
    at_levels = []
    for name, gain in gains.items():
        interval = stats.ttest_1samp(gain, 0).confidence_interval(0.95)
        at_levels.append(f"{fmean(gain):.3f} [{interval.low:.3f}, {interval.high:.3f}] at {name}")
    apart = [late - early for early, late in zip(*gains.values(), strict=True)]
    test = stats.ttest_1samp(apart, 0)
    by = f"{fmean(apart):.3f} [{test.confidence_interval(0.95).low:.3f}, {test.confidence_interval(0.95).high:.3f}]"
    larger = f"the effect is larger at sync=never than at sync=5 by {by} (Holm p < 0.0001)"
    start = "interaction of β and sync period: "
    assert line(runs, start) == f"{start}β 0.1 minus 4 is {', '.join(at_levels)}; {larger}; on these prompts"
    # The groups are knobs, interactions and arms, of the objective and, but for arms, of the drift: a fifth for each.
    (found,) = find(runs, OUTCOMES).interactions["objective"]
    assert found.family_size == pytest.approx(5)
    assert test.pvalue < 1e-4 / 5
    table = interaction_table(find(runs, OUTCOMES), "objective")
    ((effect, between, at_never, at_5, difference, *_),) = table.rows
    assert (at_never[:6], at_5[:6]) == tuple(f"-{fmean(gains[name]):.3f}" for name in ("sync=never", "sync=5"))
    # Later level minus earlier in the table: 4 - 0.1 is the effect of the words with the other sign.
    assert (effect, between) == ("β: 4 − 0.1", "sync period: never − 5")  # noqa: RUF001 - a minus between two numbers
    assert difference.startswith(f"-{fmean(apart):.3f} [-")
    assert table.strong == {0}


def test_a_mean_effect_that_holds_at_no_level_is_not_left_alone() -> None:
    """The interaction is not established; its size still shows that the mean effect describes neither level."""

    def objective(beta: float, sync: int | None, seed: int) -> float:
        swing = (0.012, -0.012)[seed]  # it leaves the mean effect as it is
        gain = 0.05 + swing + 0.0005 * seed if sync == 5 else 0.18 - swing
        return 0.4 + 0.1 * seed + (gain if beta == 0.1 else 0.0)

    runs = sweep(objective, (0, 1))
    (main,) = find(runs, ("objective",)).effects["objective"].of(BETA)
    assert main.estimate.high < 0
    sentence = line(runs, "interaction of β and sync period: β 0.1 minus 4 is ")
    assert re.search(r" 0\.050 \[.*\] at sync=5, 0\.180 \[.*\] at sync=never; ", sentence)
    assert "larger at sync=never than at sync=5 by 0.130 [-0." in sentence
    assert sentence.endswith("is not established, but more than the mean effect: read each level; on these prompts")


# The best arm


def test_a_better_mean_over_other_seeds_is_no_lead() -> None:
    """Two arms with two complete seeds each that share one: paired, the arm with the lower mean is ahead."""
    runs = sweep(lambda beta, sync, seed: 0.5 + (0.3 * seed if beta == 0.1 else 0.2), (0, 1, 2), syncs=(5,))
    frame = runs.table.copy()
    frame.loc[(frame["arm"] == 0) & (frame["seed"] == 0), "status"] = "failed"
    frame.loc[(frame["arm"] == 1) & (frame["seed"] == 2), "status"] = "failed"
    best = best_arm(find(SweepRuns(facts((0, 1, 2)), frame), OUTCOMES))
    assert best is not None
    (rival,) = best.rivals
    assert rival.lead == pytest.approx(0.1)
    assert not rival.is_beaten


# Few seeds


def test_two_seeds_say_what_two_seeds_can_show() -> None:
    runs = sweep(crossed, (0, 1))
    sentence = line(runs, "what 2 seeds can show: ")
    assert "once a difference is 12.7 times its standard error" in sentence
    # Two differences d1 and d2 have the mean m and the error |d1 - d2| / 2: 12.7 |d1 - d2| / 2 < m.
    assert 2 / stats.t.ppf(0.975, 1) == pytest.approx(0.157, abs=1e-3)
    assert "1 degree of freedom" in sentence
    assert "lie within 16 % of each other" in sentence
    of_levels = find(runs, OUTCOMES).effects["objective"].contrasts
    errors = [abs(one.differences[0] - one.differences[1]) / 2 for one in of_levels]
    # Two of them have a fifth of the 5 % together.
    needed = [stats.t.ppf(1 - 0.025 / count, 1) * fmean(errors) for count in (1, 2 * 5)]
    assert (
        f"between levels that is typically a difference of {needed[0]:.3f}, and of {needed[1]:.3f} to stand after " in sentence
    )


# One kind of ±


def test_a_mean_has_the_same_plus_minus_in_words_tables_and_pictures(tmp_path: Path) -> None:
    runs = sweep(crossed, (0, 1, 2))
    findings = find(runs, OUTCOMES)
    best = best_arm(findings)
    table = outcome_table(runs, best)
    cells = {row[0]: row[table.head.index("objective")] for row in table.rows}
    for arm, of_seed in runs.values("objective").items():
        values = list(of_seed.values())
        interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert cells[str(arm)] == f"{fmean(values):.3f} ± {(interval.high - interval.low) / 2:.3f}"
    heat = [text.get_text().replace("\n", " ") for text in heat_figure(runs, BETA, SYNC).axes[0].texts]
    assert heat == [cells[str(arm.number)] for arm in runs.arms]
    assert best is not None
    assert f": {cells[str(best.arm.number)]} (± half the 95 % interval over 3 seeds); " in words(runs)[0]
    bars = [one for one in frontier_figure(runs).axes[0].containers if isinstance(one, ErrorbarContainer)]
    heights = []
    for bar in bars:
        _, _, (_, vertical) = bar.lines
        (segment,) = vertical.get_segments()
        heights.append(f"{fmean(segment[:, 1]):.3f} ± {(segment[1, 1] - segment[0, 1]) / 2:.3f}")
    assert heights == [cells[str(arm.number)] for arm in runs.arms]
    page = html.unescape(
        write_report(runs.facts, runs.table, pandas.DataFrame(), pandas.DataFrame(), tmp_path).page.read_text()
    )
    assert "± standard error" not in page
    assert "± 1 standard" not in page
    assert page.count("± half the 95 % interval over") >= 4


def test_a_mean_over_fewer_seeds_than_its_row_says_so() -> None:
    runs = sweep(crossed, (0, 1, 2))
    frame = runs.table.copy()
    frame["probe_kl_init"] = 0.2
    frame.loc[(frame["arm"] == 1) & (frame["seed"] == 2), "probe_kl_init"] = float("nan")
    known = SweepRuns(facts((0, 1, 2)), frame)
    table = outcome_table(known, None)
    column = table.head.index("the same, exact")
    assert [row[column] for row in table.rows] == ["0.200 ± 0.000", "0.200 ± 0.000 (2 of 3)", "0.200 ± 0.000", "0.200 ± 0.000"]
    # The drift of all runs is known per completion alone, so that is the drift of the answer.
    assert any(text.startswith("drift by β (KL to the initial policy, nats per completion)") for text in words(known))


# Words and tables


def measured(seeds: Sequence[int], primary: Primary | None, planned: int | None = None) -> tuple[SweepFacts, SweepRuns]:
    """Return a sweep with an effect of every knob, known prompt by prompt."""
    random = np.random.default_rng(5)
    runs = sweep(crossed, seeds, syncs=(5, 20, None))
    frame = runs.table.assign(kl_init_seq=[2 + arm + random.normal(0, 0.2) for arm in runs.table["arm"]])
    prompts = {
        (row["arm"], row["seed"]): pandas.Series(random.random(40) + row["objective"]) for row in frame.to_dict("records")
    }
    frame["objective"] = [prompts[arm, seed].mean() for arm, seed in zip(frame["arm"], frame["seed"], strict=True)]
    of_sweep = replace(facts(seeds), primary=primary, planned_runs=planned)
    return of_sweep, SweepRuns(of_sweep, frame, prompts)


QUESTIONS = (None, Primary(knob=BETA), Primary(knob=SYNC, levels=(5, None)))


@pytest.mark.parametrize("primary", QUESTIONS, ids=["none", "knob", "contrast"])
def test_every_figure_of_a_sentence_stands_in_a_table(primary: Primary | None) -> None:
    _, runs = measured((0, 1, 2, 3), primary)
    findings = find(runs, OUTCOMES)
    page = render_page(findings, (), {})
    cells = set(re.findall(r"\d+\.\d+", " ".join(re.findall(r"<t[dh]\b.*?</t[dh]>", html.unescape(page), flags=re.DOTALL))))
    starts = ("the question", "best", "arm by arm", "β", "sync period", "interaction", "drift")
    said = [text for text in answer(findings) if text.startswith(starts)]
    assert len(said) >= 6
    for text in said:
        assert set(re.findall(r"\d+\.\d+", text.replace("95 %", ""))) <= cells, text
        prompts = "these prompts" if text.startswith("drift") else "these 40 prompts"
        assert text.endswith(f"; on {prompts}") == (" [" in text or "±" in text)


def test_the_question_stands_first_and_the_rest_is_exploratory() -> None:
    _, runs = measured((0, 1, 2, 3), Primary(knob=SYNC, levels=(5, None)))
    findings, said = find(runs, OUTCOMES), words(runs)
    assert said[0].startswith("the question, sync period 5 or never: ")
    (asked,) = findings.question
    assert asked in findings.effects["objective"].contrasts
    assert asked.family_size == pytest.approx(1 / 0.6)
    assert " 5 and never" not in line(runs, "sync period: ")
    assert any(text.startswith("the lines above but the question") and "are exploratory" in text for text in said)
    _, whole = measured((0, 1, 2, 3), Primary(knob=BETA))
    assert line(whole, "β: ") == "β: answered by the question"
    # The question has the same p-value whatever else is in the report.
    assert asked.holm_p <= asked.family_p / 0.6 + 1e-12


def test_an_interim_report_claims_nothing() -> None:
    """Every effect is far beyond chance; it is not claimed while one run is to come."""
    _, whole = measured((0, 1, 2, 3), Primary(knob=BETA))
    assert any(one.is_claim for one in find(whole, OUTCOMES).sentences)
    frame = whole.table.copy()
    frame.loc[(frame["arm"] == 5) & (frame["seed"] == 3), "status"] = "running"
    interim = SweepRuns(whole.facts, frame)
    findings = find(interim, OUTCOMES)
    assert not any(one.is_claim for one in findings.sentences)
    assert min(one.holm_p for one in findings.sentences if one.holm_p == one.holm_p) < 0.01
    said = words(interim)
    assert said[0] == "interim: 3 of 4 seeds (1 run to come); no claims are made before all planned seeds are in"
    assert not [text for text in said if " beats " in text or "has lower drift" in text or "after correction over" in text]
    # One that failed is not to come.
    frame.loc[(frame["arm"] == 5) & (frame["seed"] == 3), "status"] = "failed"
    assert any(one.is_claim for one in find(SweepRuns(whole.facts, frame), OUTCOMES).sentences)
    # Arms that are not chosen yet are; not where the budget is spent.
    late, _ = measured((0, 1, 2, 3), None, planned=28)
    assert SweepRuns(late, whole.table).awaited == (4, 0)
    assert SweepRuns(replace(late, budget_spent=True), whole.table).awaited == (0, 4)


def test_the_best_of_equal_arms_is_shown_without_its_luck() -> None:
    random = np.random.default_rng(0)
    luck = []
    for _ in range(100):
        noise = random.normal(0, 0.02, (2, 9, 3))
        runs = sweep(lambda beta, sync, seed: 0.5 + noise[int(beta == 0.1), sync, seed], (0, 1, 2), syncs=range(9))  # noqa: B023
        means = {arm: fmean(of_seed.values()) for arm, of_seed in runs.values("objective").items()}
        best = max(means, key=means.__getitem__)
        luck.append((means[best] - 0.5, shrunken_means(runs, runs.arms)[best] - 0.5))
    plain_luck, left = (fmean(side) for side in zip(*luck, strict=True))
    assert plain_luck > 1.6 * 0.02 / 3**0.5
    assert abs(left) < 0.35 * plain_luck
