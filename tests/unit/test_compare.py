"""Several runs side by side: names, colours, settings, first differences, paired differences, page, completions, tables."""

import json
import math
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas
import pytest
from scipy import stats

from grpo_core.compare.comparison import LENGTHS, RunComparison, compare_sources, shared_ends
from grpo_core.compare.page import TABLES, render_comparison, write_comparison
from grpo_core.compare.runs import MOST_RUNS, Source
from grpo_core.compare.samples import MOST_ACROSS, side_by_side
from grpo_core.errors import ConfigError, FolderError, JournalError
from grpo_core.metrics import LAST_STEPS
from grpo_core.run.journal import Journal, read_journal
from grpo_core.run.reproduction import FigureDifference
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.results import SweepRun, run_row
from grpo_core.sweep.schema import ObjectiveConfig
from tests.compared import STEPS, step_figures, write_compared
from tests.support.pages import Page
from tests.unit.test_run_page import LONG, REWARDS, write_table

BETAS = (0.0, 0.04, 0.1)


def compared(*folders: Path, title: str | None = None) -> RunComparison:
    """Compare the runs in some folders."""
    return compare_sources([Source(given=str(folder), path=folder) for folder in folders], title)


def rows(table: pandas.DataFrame) -> dict[tuple[str, str], dict[Any, Any]]:
    """Return the rows of a table of differences by their first two columns."""
    return {(row[table.columns[0]], row[table.columns[1]]): row for row in table.to_dict("records")}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three β with two seeds each, all with the same prompts; β 0 has no reference sync."""
    folder = tmp_path_factory.mktemp("runs")
    return [
        write_compared(
            folder / f"beta-{beta:g}-seed-{seed}",
            {"loss.beta": beta, "training.seed": seed, "reference.sync_steps": 5 if beta else None},
            correct=[True, beta > 0, False, seed > 0],
        ).path
        for beta in BETAS
        for seed in (0, 1)
    ]


# Names, settings, colours


def test_a_figure_at_the_end_is_of_the_same_steps_in_a_sweeps_report_and_in_the_comparison(tmp_path: Path) -> None:
    """Witness: the journal."""
    counted = {step: {"progress/generated_tokens": 10.0 * step} for step in range(1, STEPS + 1)}
    run_dir = write_compared(tmp_path / "one", {"training.steps": STEPS}, figures=counted)
    records = read_journal(run_dir.journal_file)
    rewards = [record.metrics["reward/mean"] for record in records if record.kind == "step"]
    row = run_row(SweepRun(arm=Arm(number=0, values={}), seed=0, folder=run_dir, records=records), None, ObjectiveConfig())
    (one,) = compared(run_dir.path).runs
    wanted = pytest.approx(math.fsum(rewards[-LAST_STEPS:]) / LAST_STEPS)
    assert len(rewards) > ObjectiveConfig().last_steps == LAST_STEPS
    assert (row["reward"], *(shared_ends("reward/mean", one, one) or ())) == (wanted, wanted, wanted)


def test_runs_are_named_by_what_differs_and_only_that_is_in_the_table_of_settings(sweep: list[Path], tmp_path: Path) -> None:
    labels = [run.label for run in compared(*sweep, sweep[0]).runs]
    assert labels[:3] == ["β 0 · sync never · s0", "β 0 · sync never · s1", "β 0.04 · sync 5 · s0"]
    assert len(set(labels)) == len(labels) == len(sweep)  # given twice it is shown once
    comparison = compared(sweep[0], sweep[3])
    assert comparison.settings == {"loss.beta": (0.0, 0.04), "reference.sync_steps": (None, 5), "training.seed": (0, 1)}
    folders = [write_compared(tmp_path / name, steps=2).path for name in ("a/run", "b/run", "c")]
    assert [run.label.rpartition(" · ")[2] for run in compared(*folders).runs] == ["run", "run (2)", "c"]


# First differences


def test_the_first_difference_names_step_figure_and_both_values(tmp_path: Path) -> None:
    first = write_compared(tmp_path / "first", steps=6)
    figures = {4: {"loss/total": 9.0}, 5: {"reward/mean": 0.123}, 2: {"time/step_seconds": 99.0}}
    other = write_compared(tmp_path / "other", steps=8, figures=figures)
    (found,) = compared(first.path, other.path).firsts
    assert found.shared_steps == 6
    assert found.first == FigureDifference(step=4, key="loss/total", before=0.04 + 0.04, now=9.0)
    assert found.first_completions is not None
    assert (found.first_completions.step, found.first_completions.key) == (5, "reward/mean")


@pytest.mark.parametrize(
    "scoring",
    [
        {"rewards": [{"fn": "exact_answer"}]},
        {"rewards": [{"fn": "reasoning_gym", "weight": 2.0}]},
    ],
)
def test_a_reward_that_is_scored_otherwise_is_no_sign_of_other_completions(tmp_path: Path, scoring: dict[str, Any]) -> None:
    one = write_compared(tmp_path / "first", steps=6)
    rewards = {step: {"reward/mean": 2.0} for step in range(1, 7)}
    other = write_compared(tmp_path / "other", scoring, steps=6, figures=rewards)
    longer = write_compared(
        tmp_path / "later", scoring, steps=6, figures={**rewards, 5: {"reward/mean": 2.0, LENGTHS[0]: 30.0}}
    )
    to_other, to_later = compared(one.path, other.path, longer.path).document["first_differences"]
    assert (to_other["first"]["step"], to_other["first"]["metric"], to_other["first_of_completions"]) == (
        1,
        "reward/mean",
        None,
    )
    assert (to_later["first_of_completions"]["step"], to_later["first_of_completions"]["metric"]) == (5, LENGTHS[0])


def test_runs_that_draw_their_tokens_differently_have_kl_figures_that_do_not_compare(tmp_path: Path) -> None:
    warm, cold = (write_compared(tmp_path / str(t), {"rollout.temperature": t}, steps=3) for t in (1.0, 0.7))
    other = write_compared(tmp_path / "other", {"loss.beta": 0.5}, steps=3)
    (note,) = compared(warm.path, cold.path).notes
    assert note.startswith("runs differ in rollout.temperature: their KL figures are of policies at different temperatures")
    assert compared(warm.path, other.path).notes == ()
    paired = [set(compared(warm.path, run.path).over_seeds["metric"]) for run in (cold, other)]
    assert "reward/mean" in paired[0]
    assert {metric for metric in paired[1] if metric.startswith("kl/")} == paired[1] - paired[0]


# Paired differences


def test_differences_are_paired_by_seed_with_student_s_interval(sweep: list[Path], tmp_path: Path) -> None:
    found = rows(compared(*sweep).over_seeds)
    one = found["reward/mean", "β 0.1 · sync 5"]
    assert (one["n"], one["seeds"], one["against"]) == (2, (0, 1), "β 0 · sync never")
    assert one["low"] == pytest.approx(-0.01) == pytest.approx(one["mean"]) == one["high"]  # the same in every seed: -β/10
    assert found["kl/init/drift", "β 0.1 · sync 5"]["mean"] == pytest.approx(
        sum(0.02 * step * (1 / 2 - 1) for step in range(3, 13)) / 10
    )
    assert found["kl/probe/full_init", "β 0.1 · sync 5"]["mean"] == pytest.approx(1.1 * 0.02 * 12 * (1 / 2 - 1))
    ends = {(0.0, 0): 1.0, (0.0, 1): 2.0, (0.0, 2): 4.0, (0.1, 0): 1.5, (0.1, 1): 2.1, (0.1, 2): 4.9}
    folders = [
        write_compared(
            tmp_path / f"{beta}-{seed}",
            {"loss.beta": beta, "training.seed": seed},
            steps=1 + (beta > 0),  # the end is that of the steps that both have done
            figures={1: {"reward/mean": end}},
        ).path
        for (beta, seed), end in ends.items()
    ]
    of_run = rows(compared(*folders).over_seeds)["reward/mean", "β 0.1"]
    expected = stats.ttest_1samp([ends[0.1, seed] - ends[0.0, seed] for seed in (0, 1, 2)], 0)
    interval = expected.confidence_interval(0.95)
    assert (of_run["low"], of_run["high"], of_run["p"]) == pytest.approx((interval.low, interval.high, expected.pvalue))


def test_runs_with_other_prompts_or_seeds_are_not_paired(tmp_path: Path) -> None:
    first = write_compared(tmp_path / "first", {"loss.beta": 0.0}, steps=2)
    other = write_compared(tmp_path / "prompts", {"loss.beta": 0.1}, steps=2, prompts="3 + 3 = ")
    seed = write_compared(tmp_path / "seed", {"loss.beta": 0.1, "training.seed": 5}, steps=2)
    comparison = compared(first.path, other.path, seed.path)
    assert len(comparison.over_seeds) == len(comparison.over_prompts) == 0
    assert "no difference is paired" in render_comparison(comparison)


def test_accuracy_is_paired_over_prompts(sweep: list[Path]) -> None:
    one = rows(compared(*sweep).over_prompts)["β 0.1 · sync 5 · s1", "β 0 · sync never · s1"]
    assert (one["n"], one["mean"]) == (4, 0.25)
    # Agresti and Min: one of four gained, and half a prompt in each cell.
    half = stats.t.ppf(0.975, 3) * math.sqrt(2 - 1 / 6) / 6
    assert (one["low"], one["high"]) == pytest.approx((1 / 6 - half, 1 / 6 + half))


def test_an_evaluation_before_the_last_step_is_not_that_of_the_final_policy(tmp_path: Path) -> None:
    ended = write_compared(tmp_path / "ended", {"loss.beta": 0.0}, steps=6)
    longer = write_compared(tmp_path / "longer", {"loss.beta": 0.1}, steps=6, end="stopped")
    pair = compared(ended.path, longer.path)
    assert len(pair.over_prompts) == 1
    assert "eval/heldout/greedy_accuracy" in set(pair.over_seeds["metric"])
    with closing(Journal(longer.journal_file)) as journal:  # stopped and evaluated, then resumed and killed
        journal.append("resume", 6, {})
        journal.append("step", 7, {"metrics": step_figures(7, seed=0, beta=0.1, syncs=())})
    pair = compared(ended.path, longer.path)
    assert len(pair.over_prompts) == 0
    assert "eval/heldout/greedy_accuracy" not in set(pair.over_seeds["metric"])
    assert "reward/mean" in set(pair.over_seeds["metric"])


# What is given


def test_a_run_that_cannot_be_read_is_named_and_the_others_are_compared(sweep: list[Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(sweep[0], damaged)
    lines = (damaged / "journal.jsonl").read_text().splitlines(keepends=True)
    (damaged / "journal.jsonl").write_text("".join([*lines[:3], *lines[4:]]))
    evaluation = write_compared(tmp_path / "evaluation", steps=0)
    evaluation.mark("evaluation")
    comparison = compared(sweep[0], damaged, sweep[2], evaluation.path)
    assert [run.source.path for run in comparison.runs] == [sweep[0], sweep[2]]
    assert list(comparison.unread) == [str(damaged), str(evaluation.path)]
    assert "is an evaluation" in comparison.unread[str(evaluation.path)]
    assert f"not compared: {damaged}" in render_comparison(comparison)
    assert [one["run"] for one in comparison.document["not_read"]] == list(comparison.unread)
    with pytest.raises(JournalError, match="none of the runs can be read"):
        compared(damaged)


def test_too_many_runs_are_refused_and_of_a_sweep_some_are_shown(tmp_path: Path) -> None:
    model = write_compared(tmp_path / "model", steps=1).path
    folders = []
    for number in range(MOST_RUNS + 1):
        folders.append(tmp_path / "sweep" / "runs" / f"arm-{number:03d}-seed-{number % 2}")
        shutil.copytree(model, folders[-1])
    with pytest.raises(ConfigError, match=f"{MOST_RUNS + 1} runs are given; at most {MOST_RUNS}"):
        compared(*folders)
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    comparison = compared(tmp_path / "sweep")
    assert f"has {MOST_RUNS + 1} runs; shown are {MOST_RUNS} of them, the lowest seeds first" in comparison.notes[0]
    assert {run.run.path.name for run in comparison.runs} == {one.name for one in folders} - {"arm-059-seed-1"}


# Page, tables


@pytest.mark.parametrize(
    ("steps", "end", "overrides"),
    [(0, None, {}), (1, None, {}), (1, "finished", {"reference.sync_steps": 1}), (5, "stopped", {"loss.beta": 0.0})],
)
def test_short_runs_and_runs_under_way_are_drawn(
    tmp_path: Path, sweep: list[Path], steps: int, end: str | None, overrides: dict[str, Any]
) -> None:
    run = write_compared(tmp_path / "run", overrides, steps=steps, end=end, correct=(False,) * 4)
    for folders in ([run.path], [sweep[0], run.path]):
        page = write_comparison(compared(*folders), tmp_path / "out")
        assert page.read_text().startswith("<!DOCTYPE html>")
        # An accuracy that training did not change is not one that is still to come.
        assert ("0.000 → …" in page.read_text(), "0.000 → 0.000" in page.read_text()) == (end is None, end is not None)


def test_what_is_not_finite_is_a_gap(tmp_path: Path) -> None:
    figures = {2: {"kl/ref/drift": math.nan}, 3: {"kl/ref/drift": math.inf, "reward/mean": -math.inf}}
    run = write_compared(tmp_path / "run", steps=5, figures=figures)
    write_comparison(compared(run.path), tmp_path / "out")
    curve = json.loads((tmp_path / "out" / "comparison.json").read_text())["runs"][0]["curves"]["kl/ref/drift"]
    assert curve["steps"] == [1, 2, 3, 4, 5]
    assert [value is None for value in curve["values"]] == [False, True, True, False, False]


def test_tables_hold_the_figures_of_the_journals(sweep: list[Path], tmp_path: Path) -> None:
    write_comparison(compared(*sweep), tmp_path / "out")
    curves = pandas.read_csv(tmp_path / "out" / "curves.csv")
    one = curves[(curves["run"] == "β 0.04 · sync 5 · s1") & (curves["metric"] == "kl/init/drift")]
    records = read_journal(sweep[3] / "journal.jsonl")
    assert one["value"].tolist() == [record.metrics["kl/init/drift"] for record in records if record.kind == "step"]
    syncs = pandas.read_csv(tmp_path / "out" / "syncs.csv")
    assert syncs.groupby("run")["step"].apply(list).to_dict() == {
        f"β {beta:g} · sync 5 · s{seed}": [5, 10] for beta in BETAS[1:] for seed in (0, 1)
    }
    tables = [tmp_path / "out" / f"{name}.csv" for name in TABLES]
    assert all(len(pandas.read_csv(table).columns) for table in tables)  # one without rows has its columns
    assert set(curves["metric"]) == {key for record in records for key in record.metrics}


def test_a_folder_of_something_else_is_not_written_into(sweep: list[Path], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FolderError, match="--out"):
        write_comparison(compared(sweep[0]), tmp_path)
    with pytest.raises(FolderError, match="is the folder of a run"):
        write_comparison(compared(sweep[0]), sweep[1])


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}\x1b[2J\u202e${1}`%{x}"


def data_of(page: str) -> dict[str, Any]:
    """Return what the script of a page is given."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def test_a_hostile_name_is_text(tmp_path: Path) -> None:
    runs = [write_compared(tmp_path / name, {"tracking.run_name": HOSTILE}, steps=2).path for name in ("a", "<b>")]
    page = render_comparison(compared(*runs, title=HOSTILE))
    read = Page(page)
    assert "img" not in read.tags
    assert not [name for name in read.attributes if name.startswith("on")]
    assert (read.tags.count("script"), "{{7*7}}" in read.text, "\x1b" in page) == (2, True, False)
    assert data_of(page)["runs"][0]["name"] == HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    # It asks for nothing from a network.
    assert not {"src", "href"} & read.attributes.keys()
    assert any("default-src 'none'" in content for content in read.attributes["content"])


def test_every_figure_of_the_page_is_the_journals_in_the_order_in_which_people_look(sweep: list[Path], tmp_path: Path) -> None:
    file = write_comparison(compared(*sweep), tmp_path / "out")
    data, page = data_of(file.read_text()), Page(file.read_text())
    for folder, run in zip(sweep, data["runs"], strict=True):
        records = read_journal(folder / "journal.jsonl")
        assert run["curves"].keys() == {key for record in records for key in record.metrics}
        for key, curve in run["curves"].items():
            measured = [(record.step, record.metrics[key]) for record in records if key in record.metrics]
            assert list(zip(curve["steps"], curve["values"], strict=True)) == measured, key
        ends = [record.metrics["reward/mean"] for record in records if record.kind == "step"][-LAST_STEPS:]
        row = page.text[page.text.index(str(folder)) - 120 : page.text.index(str(folder))]
        assert f"{math.fsum(ends) / LAST_STEPS:.3f}" in row
    assert "0.000 → 0.750" in page.text  # beta 0.1, seed 1: three of four right
    assert "-0.010 (-0.010 · -0.010)" in page.text  # reward of beta 0.1: of two seeds no interval, each one's own difference
    # One colour a setting, one dash a seed.
    assert [run["colour"] for run in data["runs"]] == [0, 0, 1, 1, 2, 2]
    assert [run["dash"] for run in data["runs"]] == ["solid", "dash"] * 3
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert [one for one in ids if one in {"runs", "legend", "charts", "others", "samples", "details"}] == [
        *("runs", "legend", "charts", "others", "samples", "details")
    ]
    assert page.tags.count("details") >= 4


def test_many_long_curves_are_thinned_to_the_same_steps_and_the_page_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Witness: the journals."""
    lengths = {"long": 60, "short": 47}
    runs = [
        write_compared(tmp_path / name, {"training.seed": at}, steps=steps) for at, (name, steps) in enumerate(lengths.items())
    ]
    monkeypatch.setattr("grpo_core.compare.page.MOST_POINTS", 400)
    data = data_of(render_comparison(compared(*(run.path for run in runs))))
    assert (data["metrics"]["reward/mean"]["every"], data["metrics"]["kl/probe/full_init"]["every"]) == (2, 1)
    for run_dir, run, last in zip(runs, data["runs"], lengths.values(), strict=True):
        steps = [step for step in range(1, last + 1) if step == 1 or step % 2 == 0 or step in lengths.values()]
        curve = run["curves"]["reward/mean"]
        assert curve["steps"] == steps
        exact = {one.step: one.metrics["reward/mean"] for one in read_journal(run_dir.journal_file) if one.kind == "step"}
        assert curve["values"] == pytest.approx([exact[step] for step in steps], rel=1e-5)
        assert max(len(str(value)) for value in curve["values"]) <= 8


def test_completions_stand_side_by_side_where_seed_and_prompts_are_the_same(tmp_path: Path) -> None:
    """Witness: the tables of completions.

    A run that died before its first completions takes none of the others' away.
    """
    runs = [
        write_compared(tmp_path / name, {"rewards": REWARDS, "rollout.group_size": 4} | changes, prompts=prompts)
        for name, changes, prompts in (
            ("zero", {"loss.beta": 0.0}, "2 + 2 = "),
            ("one", {"loss.beta": 0.1}, "2 + 2 = "),
            ("seed", {"loss.beta": 0.1, "training.seed": 1}, "2 + 2 = "),
            ("prompts", {"loss.beta": 0.2}, "3 + 3 = "),
        )
    ]
    for run in runs:
        write_table(run, 1)
        write_table(run, 12, texts=("1", f"2{run.path.name}", LONG, f"{LONG}{run.path.name}{LONG}"))
    write_table(runs[0], 7)  # the others have not kept it
    died = write_compared(tmp_path / "died", {"rewards": REWARDS, "rollout.group_size": 4, "loss.beta": 0.5}, steps=0, end=None)
    samples, notes = side_by_side(compared(*(run.path for run in (*runs, died))).runs)
    (part,) = samples
    assert (part["seed"], part["runs"], [step["step"] for step in part["steps"]]) == (0, [0, 1], [1, 12])
    alone = "no other run with completions has the seed, prompts and sampler"
    assert notes == ["no completions were kept: β 0.5 · s0", f"{alone}: β 0.1 · s1, β 0.2 · s0"]
    tables = [pandas.read_parquet(run.completions_file(12)) for run in runs[:2]]
    for number, card in enumerate(part["steps"][1]["cards"]):
        for index, row in enumerate(card["rows"]):
            at = 4 * number + index
            assert [one[3] for one in row] == [table["reward"][at] for table in tables]
            assert [one[0][:3] for one in row] == [table["completion"][at][:3] for table in tables]
            is_same = tables[0]["completion"][at] == tables[1]["completion"][at]
            assert (row[0][6], row[1][6] is None) == (None, is_same)
    second, *_, fourth = part["steps"][1]["cards"][0]["rows"][1:]
    assert (second[1][0], second[1][6]) == ("2one", 1)  # from its second character on
    assert fourth[1][6] == len(fourth[1][0])  # what differs is in the part that is left out
    assert part["steps"][0]["total"] == len(part["steps"][0]["cards"]) == 4
    other_seed = side_by_side(compared(runs[0].path, runs[2].path).runs)
    assert other_seed == ([], [f"{alone}: β 0 · s0, β 0.1 · s1"])


def test_steps_without_a_shared_prompt_give_way_and_runs_that_are_left_out_are_named(tmp_path: Path) -> None:
    """Runs with other prompts in most steps: of 12 steps that all kept, two have a prompt of all."""
    runs = [
        write_compared(tmp_path / f"{number}", {"rewards": REWARDS, "rollout.group_size": 4, "loss.beta": number / 100})
        for number in range(MOST_ACROSS + 1)
    ]
    for number, run in enumerate(runs):
        for step in range(1, 13):
            write_table(run, step, prompts=1)
            if number == 1 and step not in {3, 4}:
                table = pandas.read_parquet(run.completions_file(step))
                table.assign(prompt_id=9).to_parquet(run.completions_file(step), index=False)
    ((part,), notes) = side_by_side(compared(*(run.path for run in runs)).runs)
    assert ([step["step"] for step in part["steps"]], part["more"], notes) == ([3, 4], ["β 0.06"], [])
