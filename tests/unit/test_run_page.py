"""The page of a run shows the journal's figures and what the model wrote, and nothing in them acts."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas
import pytest

from grpo_core.config import RunConfig
from grpo_core.run.curves import Curve
from grpo_core.run.folder import RunDir, add_alert
from grpo_core.run.journal import Record, encode, read_journal
from grpo_core.run.samples import kept_steps, read_groups, samples_table
from grpo_core.run_page.page import _cards, _figures, write_page
from tests.compared import step_figures, write_compared
from tests.support.pages import Page
from tests.support.sweeps import write_run

HOSTILE = "</script><script>document.title='attacked'</script><!-- <img src=x onerror=alert(1)> \x1b[2J\u202e\x00"
LONG = "0123456789" * 10_000
REWARDS = [{"fn": "exact_answer"}, {"fn": "length"}]
TEXTS = ("1", "2", HOSTILE, LONG)


def write_table(run_dir: RunDir, step: int, texts: Sequence[str] = TEXTS, prompts: int = 4) -> None:
    """Write the completions of a step, a group of `texts` a prompt: the first of each is right."""
    rows = [
        {
            "step": step,
            "prompt_id": number,
            "prompt": f"2 + 2 = {number}",
            "completion": text,
            "answer": "1",
            "reward": float(index == 0),
            "reward_exact_answer": float(index == 0),
            "reward_length": float("nan") if index == 1 else 0.5,
            "advantage": (3.0 if index == 0 else -1.0) * (number > 0),
            "tokens": index + 1,
            "truncated": index == len(texts) - 1,
        }
        for number in range(prompts)
        for index, text in enumerate(texts)
    ]
    run_dir.completions.mkdir(exist_ok=True)
    pandas.DataFrame(rows).to_parquet(run_dir.completions_file(step), index=False)


def data_of(run_dir: RunDir, **options: Any) -> dict[str, Any]:
    """Write the page of a run and return what its script is given."""
    write_page(run_dir, **options)
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', run_dir.page.read_text(), re.DOTALL)
    return json.loads(found)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A finished run of 12 steps whose syncs, alert, name, prompts and completions are known."""
    changes = {"reference.sync_steps": 5, "rewards": REWARDS, "rollout.group_size": 4, "tracking.run_name": HOSTILE}
    made = write_compared(tmp_path_factory.mktemp("page") / "one", changes)
    add_alert(made, 7, f"step 7: {HOSTILE}", "kl_budget:kl/ref/drift")
    for step in (1, 12):
        write_table(made, step)
    return made


def test_every_curve_sync_alert_and_evaluation_is_the_journals(run_dir: RunDir) -> None:
    data, records = data_of(run_dir), read_journal(run_dir.journal_file)
    steps = [record for record in records if record.kind == "step"]
    assert {"reward/mean", "kl/ref/drift", "kl/init/drift", "kl/probe/full_init", "policy/entropy"} <= data["curves"].keys()
    for key, curve in data["curves"].items():
        measured = [(record.step, record.metrics[key]) for record in records if key in record.metrics]
        assert list(zip(curve["steps"], curve["values"], strict=True)) == measured, key
    for key in ("reward/mean", "kl/ref/drift", "policy/entropy"):
        values = [record.metrics[key] for record in steps if key in record.metrics]
        assert data["figures"][key]["recent"] == pytest.approx(fmean(values[-10:])), key
        assert (data["figures"][key]["early"], data["figures"][key]["early_steps"]) == (pytest.approx(fmean(values[:5])), 5)
    accuracy = data["curves"]["eval/heldout/greedy_accuracy"]
    assert (accuracy["low"], accuracy["high"]) == ([0.0, 0.3], [0.2, 0.7])
    assert data["sync_steps"] == [row[0] for row in data["syncs"]["rows"]] == [5, 10]
    assert [alert["step"] for alert in data["alerts"]] == [7]
    assert data["positions"]["cells"][0] == [record.metrics["kl/probe/init_at_0"] for record in steps[3::4]]
    assert (data["state"], data["step"], data["live"]) == ("finished", 12, False)


def test_a_steered_beta_has_a_curve(tmp_path: Path) -> None:
    made = RunDir(tmp_path / "run")
    write_run(made, RunConfig(), lambda step: {"loss/beta": 0.25 * step}, 3)
    assert data_of(made)["curves"]["loss/beta"]["values"] == [0.25, 0.5, 0.75]
    assert 'line("loss/beta"' in made.page.read_text()


def test_what_the_model_wrote_is_read_with_answers_verdicts_and_rewards(run_dir: RunDir) -> None:
    assert kept_steps(run_dir) == [1, 12]
    groups = read_groups(run_dir, 12)
    assert [(group.end, group.answer, group.verdict) for group in groups[:2]] == [(f"{n}", "1", "1 of 4 right") for n in (0, 1)]
    right, wrong, *_, long = groups[1].completions
    assert (right.text, right.reward, right.advantage, right.is_right, right.line) == ("1", 1.0, 3.0, True, "✓ 1")
    assert (wrong.tokens, wrong.is_right, wrong.by_function["exact_answer"]) == (2, False, 0.0)
    assert long.truncated
    assert long.line == f"✗ {LONG[:160]}… [cut]"
    assert list(samples_table(run_dir, 12).columns)[:4] == ["prompt", "completion", "answer", "reward"]
    assert list(samples_table(run_dir, 12).columns)[-2:] == ["step", "prompt_id"]
    card = data_of(run_dir)["samples"]["steps"][-1]["groups"][1]
    assert card["rows"][0] == [1, "1", 0, 1, 1.0, 3.0, False, True, [1.0, 0.5]]
    assert card["rows"][1][-1] == [0.0, None]


def test_the_group_is_relative_where_nothing_says_what_is_right(tmp_path: Path) -> None:
    made = write_compared(tmp_path / "one", {"rewards": REWARDS, "rollout.group_size": 4, "data.answer_column": None})
    write_table(made, 3)
    (first, *_) = read_groups(made, 3)
    assert ({one.is_right for one in first.completions}, first.verdict) == ({None}, "")


def test_hostile_texts_neither_end_the_data_nor_act_and_long_ones_are_cut(run_dir: RunDir) -> None:
    data = data_of(run_dir)
    text = run_dir.page.read_text()
    page = Page(text)
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert "onerror" not in page.attributes
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert data["title"].startswith("</script><script>")
    hostile, long = data["samples"]["steps"][0]["groups"][0]["rows"][2:]
    assert hostile[1] == HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e").replace("\x00", "\\x00")
    assert (len(long[1]) < 700, long[2]) == (True, len(LONG))


def test_a_page_of_a_thousand_steps_is_below_a_megabyte_and_thins_only_what_is_longer(tmp_path: Path) -> None:
    made = write_compared(tmp_path / "long", {"rewards": REWARDS, "rollout.group_size": 8}, steps=0, end=None)
    start = read_journal(made.journal_file)
    names = [f"time/{phase}_seconds" for phase in ("rollout", "reward", "logps", "update", "sync")]
    names += ["completion/tokens/max", "completion/truncated_frac", "optim/grad_norm", "optim/lr", "reward/length/mean"]
    for number, most in ((1000, 1000), (4000, 2000)):
        lines = [encode(record) for record in start]
        for step in range(1, number + 1):
            figures = step_figures(step, seed=0, beta=0.1, syncs=()) | dict.fromkeys(names, step / 7)
            figures["policy/entropy"] = 9.0 if step == 777 else 0.1  # a spike of one step
            lines.append(encode(Record(seq=len(lines), time=start[0].time, kind="step", step=step, data={"metrics": figures})))
        made.journal_file.write_bytes(b"".join(lines))
        for step in range(1, number + 1, 25):
            write_table(made, step, texts=[f"{step * index}, because {step} is {index} " * 9 for index in range(8)], prompts=16)
        write_table(made, number)
        data = data_of(made)
        assert made.page.stat().st_size < 1_000_000
        assert set(names) <= data["curves"].keys()
        entropy = data["curves"]["policy/entropy"]
        assert len(entropy["steps"]) <= most
        assert (entropy["steps"][0], entropy["steps"][-1], max(entropy["values"])) == (1, number, 9.0)
        shown = [one["step"] for one in data["samples"]["steps"]]
        assert (len(shown), shown[0], shown[-1]) == (20, 1, number)
        if number == 1000:
            assert entropy["steps"] == list(range(1, 1001))


def test_a_run_that_has_not_begun_has_a_page(tmp_path: Path) -> None:
    made = write_compared(tmp_path / "new", steps=0, end=None)
    data = data_of(made, live=True, places=[("MLflow", "http://127.0.0.1:5000/#/x")])
    assert (data["step"], data["live"], data["samples"]["steps"]) == (0, True, [])
    assert data["places"] == [["MLflow", "http://127.0.0.1:5000/#/x"]]


def test_a_long_curve_is_thinned_and_its_figures_are_of_all_steps(tmp_path: Path) -> None:
    curve = Curve(key="reward/mean", steps=np.arange(1, 5001), values=np.where(np.arange(5000) % 5 == 0, np.nan, 0.5))
    curve.values[2500] = 9.0
    points, figures = curve.points(100), _figures(curve)
    assert len(points["values"]) <= 100
    assert max(points["values"]) == 9.0
    assert all(map(np.isfinite, points["values"]))
    assert (figures["recent"], figures["early"], figures["sum"]) == (0.5, 0.5, 0.5 * 4000 + 9.0)
    unknown = Curve(key="reward/mean", steps=curve.steps, values=np.full(5000, np.nan))
    unknown.values[17] = 2.0
    assert unknown.points(100) == {"steps": [18], "values": [2.0]}
    (run_dir := RunDir(tmp_path)).completions.mkdir()
    run_dir.completions_file(3).write_bytes(b"no table")
    (run_dir.completions / "step_000010 (copy).parquet").touch()
    assert (kept_steps(run_dir), _cards(run_dir, 3)) == ([3], ([], [0]))
