"""A sweep is planned from runs before it is paid for; what it was to answer is written down, and reported where it departs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml

from grpo_core.errors import ConfigError, SweepError
from grpo_core.evaluation.results import table_file
from grpo_core.sweep.extension import extended
from grpo_core.sweep.folder import StoredSweep, SweepDir
from grpo_core.sweep.pilot import Pilot, draws_of, pilot_file, read_pilot
from grpo_core.sweep.plan import Plan, load_sweep, make_plan
from grpo_core.sweep.planning import describe, designs, plan_file, read_plan, write_plan
from grpo_core.sweep.preregistration import departures, preregister
from grpo_core.sweep.report.files import make_report
from grpo_core.sweep.schema import ObjectiveConfig
from tests.support.sweeps import STEPS, Launcher, run_all, spread_runs, stored_sweep

VALUES: dict[str, Any] = {
    "base": "sums_tiny_cpu",
    "overrides": {"training.steps": STEPS},
    "axes": {"loss.beta": [0.1, 0.5, 1.0], "rollout.group_size": [4, 8]},
    "hold": "completions",
    "seeds": [0, 1, 2],
    "objective": {"metric": "reward/mean"},
}


def planned(**keys: Any) -> Plan:
    return make_plan({**VALUES, **keys})


@pytest.fixture
def pilot(tmp_path: Path) -> Pilot:
    """Two settings with four seeds, whose rewards spread."""
    return read_pilot([spread_runs(tmp_path, 4)], ObjectiveConfig(metric="reward/mean"))


# The pilot


def test_a_pilot_has_two_settings_of_the_sweep_with_seeds_that_it_does_not_have(tmp_path: Path) -> None:
    file = tmp_path / "mine-pilot.yaml"
    assert pilot_file(planned(), file).path == tmp_path / "mine-pilot"
    made = load_sweep(file)
    assert (made.sweep.axes, made.sweep.seeds, made.num_runs) == ({"loss.beta": (0.1, 1.0)}, (1001, 1002), 4)
    first = planned().configs[0].rollout
    assert {(one.rollout.group_size, one.rollout.num_prompts_per_step) for one in made.configs} == {
        (first.group_size, first.num_prompts_per_step)
    }


@pytest.mark.parametrize(
    ("primary", "axes"),
    [
        ({"knob": "loss.beta", "first": 0.5, "second": 1.0}, {"loss.beta": (0.5, 1.0)}),
        ({"knob": "rollout.group_size"}, {"rollout.group_size": (4, 8)}),
    ],
)
def test_a_pilot_is_about_the_question(tmp_path: Path, primary: dict[str, Any], axes: dict[str, Any]) -> None:
    pilot_file(planned(primary=primary), tmp_path / "p.yaml")
    assert load_sweep(tmp_path / "p.yaml").sweep.axes == axes


SETTINGS = {"plain": {"loss.kl_estimator": "k3"}, "both": {"loss.beta": 0.3, "loss.kl_estimator": "full"}}
CLAIM = {"says": "they differ", "source": "a paper", "effect": 0.1, "margin": 0.02, "limits": "one task"}


@pytest.mark.parametrize("knob", ["setting", "optimizer.lr"])
def test_a_pilot_of_settings_by_name_has_of_each_its_own_keys_alone(tmp_path: Path, knob: str) -> None:
    axes = {"optimizer.lr": [1e-4, 3e-4]}
    primary = {
        "knob": knob,
        **dict(zip(("first", "second"), (list(SETTINGS) if knob == "setting" else axes[knob]), strict=True)),
    }
    plan = planned(settings=SETTINGS, axes=axes, hold=None, primary=primary, claim=CLAIM)
    pilot_file(plan, tmp_path / "p.yaml")
    made = load_sweep(tmp_path / "p.yaml").configs
    assert len(made) == 2
    of_plan = [one.model_copy(update={"training": made[0].training}) for one in plan.configs]
    assert all(one in of_plan for one in made)
    assert len({one.loss.kl_estimator for one in made}) == (2 if knob == "setting" else 1)


def test_a_pilot_is_used_again_for_more_seeds_and_not_for_other_settings(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    folder = pilot_file(planned(), file)
    folder.create(load_sweep(file), "p", "p-1")
    assert pilot_file(planned(seeds=[0, 1, 2, 3, 4]), file).path == folder.path
    kept = file.read_bytes()
    with pytest.raises(ConfigError, match="holds the pilot of other settings; move it away, or name it with --pilot"):
        pilot_file(planned(overrides={"training.steps": 4}), file)
    assert file.read_bytes() == kept


def test_runs_are_a_pilot_however_they_are_named(tmp_path: Path) -> None:
    sweep, objective = spread_runs(tmp_path, 3), ObjectiveConfig(metric="reward/mean")
    found = [read_pilot(folders, objective) for folders in ([sweep], [sweep / "runs"], sorted((sweep / "runs").iterdir()))]
    assert found[0].variance == found[1].variance == found[2].variance
    assert [(one.runs["setting"].nunique(), len(one.runs)) for one in found] == [(2, 6)] * 3
    assert found[0].runs["tokens"].tolist() == [300.0] * 6
    again = read_pilot([sweep, sweep / "runs" / "arm-000-seed-0"], objective)  # named twice, it counts once
    assert (len(again.runs), again.variance) == (6, found[0].variance)
    with pytest.raises(SweepError, match=r"--pilot .*: 1 finished run\(s\) with reward/mean; at least 2 are needed"):
        read_pilot([sweep / "runs" / "arm-000-seed-0"], objective)


@pytest.mark.parametrize(
    ("metric", "shape", "mean"), [("pass_at_1", (2, 4), 0.375), ("pass_at_4", (2, 1), 1.0), ("greedy_accuracy", (2, 1), 0.5)]
)
def test_the_metric_is_the_mean_of_what_completions_contribute(
    tmp_path: Path, metric: str, shape: tuple[int, int], mean: float
) -> None:
    rows = [(7, -1, True), (3, -1, False)]
    rows += [(prompt, sample, sample < right) for prompt, right in ((7, 1), (3, 2)) for sample in range(4)]
    folder = SweepDir(tmp_path).run_dir(0, 0)
    folder.eval.mkdir(parents=True)
    pandas.DataFrame(rows, columns=["prompt_id", "sample", "correct"]).to_parquet(table_file(folder, "final"))
    table = draws_of(folder, ObjectiveConfig(metric=f"eval/heldout/{metric}"), mean)
    assert table is not None
    assert (table.shape, table.mean()) == (shape, pytest.approx(mean))
    assert draws_of(folder, ObjectiveConfig(metric=f"eval/heldout/{metric}"), mean + 0.01) is None
    assert draws_of(folder, ObjectiveConfig(metric="reward/mean"), mean) is None


# The plan


def test_a_plan_is_printed_with_what_more_would_buy(pilot: Pilot) -> None:
    lines = list(describe(planned(), pilot, 0.05))
    text = "\n".join(lines)
    assert lines[0] == "6 settings x 3 seeds = 18 runs, by reward/mean"
    assert "pilot: 2 settings, 4 seeds, 8 runs" in text
    rows = {line.split("  ")[0]: line.split() for line in lines}
    (head,) = [line for line in lines if line.endswith("disk")]
    assert head.split()[:3] == ["β", "group", "size"]
    assert float(rows["one more seed"][3]) < float(rows["as planned"][2])
    assert "twice the samples" not in text
    assert lines[-1] == "nothing of the sweep was run"
    assert len(rows["seeds for 0.05"]) == 7


def test_prompts_and_samples_that_are_known_may_be_doubled(pilot: Pilot) -> None:
    plan = planned(objective={"metric": "eval/heldout/pass_at_1"})
    runs = pilot.runs.assign(wall_seconds=10.0, eval_seconds=2.0)
    known = Pilot(**{**vars(pilot), "samples": 2, "num_prompts": 50, "held_out": 50, "runs": runs})
    found = designs(plan, known)
    assert {name: (one["seeds"], one["samples"], one["num_prompts"], one["seconds"]) for name, one in found.items()} == {
        "as planned": (3, 4, 50, 18 * 12.0),  # 4 completions to a prompt, of which the pilot had 2
        "one more seed": (4, 4, 50, 24 * 12.0),
        "twice the samples": (3, 8, 50, 18 * 16.0),
        "twice the held-out prompts": (3, 4, 100, 18 * 16.0),
    }


def warned(plan: Plan, pilot: Pilot) -> list[str]:
    return [line.removeprefix("warning: ") for line in describe(plan, pilot) if line.startswith("warning: ")]


def test_a_plan_warns_and_refuses_nothing(pilot: Pilot) -> None:
    texts = warned(planned(seeds=[0], overrides={"training.steps": 5, "model.source": "other"}), pilot)
    assert texts[0].startswith("seeds: 1 is below 3")
    assert any("df 3" in text and "as large (95 %)" in text for text in texts)
    assert texts[-1].startswith("the pilot's runs differ from the sweep's (model.source ")
    assert texts[-1].endswith(", not other, training.steps 3, not 5): their spread may be another")
    assert not any(text.startswith(("seeds", "the pilot's runs differ")) for text in warned(planned(), pilot))
    drawn = Pilot(**{**vars(pilot), "variance": pilot.variance.__class__(training=0.0, draws=0.1, freedom=1.0)})
    assert any("may be 1.0 to 31.9 times as large" in text for text in warned(planned(), drawn))
    noisy = Pilot(**{**vars(pilot), "variance": pilot.variance.__class__(training=2.0, freedom=30.0)})
    share = planned(objective={"metric": "eval/heldout/greedy_accuracy"})
    assert "the smallest difference being more than 1: β, group size, a pair alone, one of 15 pairs" in "\n".join(
        warned(share, noisy)
    )


def test_a_plan_is_kept_for_the_same_settings_with_any_seeds(tmp_path: Path, pilot: Pilot) -> None:
    file = plan_file(tmp_path, "mine")
    write_plan(file, planned(), pilot, 0.02)
    made = read_plan(file, planned(seeds=[0, 1, 2, 3, 4]))
    assert made is not None
    assert made["detect"] == 0.02
    assert list(made["designs"]["as planned"]["smallest"]) == ["β", "group size", "a pair alone", "one of 15 pairs"]
    assert json.loads(file.read_text(), parse_constant=pytest.fail) == made  # neither NaN nor Infinity
    assert read_plan(file, planned(axes={"loss.beta": [0.1, 1.0], "rollout.group_size": [4, 8]})) is None
    assert read_plan(file, planned(overrides={"training.steps": 5})) is None
    assert read_plan(tmp_path / "none", planned()) is None
    file.write_text("[]")
    assert read_plan(file, planned()) is None


# What was registered


def registered(folder: Path, made: dict[str, Any] | None = None, digest: str | None = "d" * 64) -> StoredSweep:
    values = yaml.safe_load((folder / "x.yaml").read_text()) if (folder / "x.yaml").exists() else {}
    keys = {
        "axes": {"loss.beta": [0.1, 1.0]},
        "hold": None,
        "seeds": [0, 1],
        "primary": {"knob": "loss.beta"},
        "failed_runs_allowed": 1,
    }
    plan = planned(**{**keys, **values})
    sweep_dir = SweepDir(folder / "sweep")
    sweep_dir.mark("sweep")
    preregister(sweep_dir, plan, made, digest)
    sweep_dir.create(plan, "name", "id-1")
    return sweep_dir.read()


def test_what_was_asked_is_registered_once(tmp_path: Path) -> None:
    stored = registered(tmp_path, {"detect": 0.02})
    facts = json.loads(stored.dir.preregistered_file.read_text())
    assert (facts["seeds"], facts["axes"], facts["runs"]) == ([0, 1], {"loss.beta": [0.1, 1.0]}, 4)
    assert (facts["alpha"], facts["share_of_question"], facts["plan"]) == (0.05, 0.6, {"detect": 0.02})
    assert (facts["objective"]["metric"], facts["data_digest"]) == ("reward/mean", "d" * 64)
    assert {"question", "git_commit", "processor", "family"} <= facts.keys()
    with pytest.raises(SweepError, match="already holds a sweep"):
        preregister(stored.dir, stored.plan, None, None)
    stored.dir.write(extended(stored, {"seeds": [0, 1, 2]}))
    assert json.loads(stored.dir.preregistered_file.read_text()) == facts


def test_a_sweep_that_departs_from_nothing_has_that_in_its_report(tmp_path: Path) -> None:
    stored = registered(tmp_path)
    run_all(stored, {})
    sweep, found = make_report(stored)
    assert sweep.departures == ()
    assert "before the first run; nothing departed from it" in stored.dir.page.read_text()
    assert not any("Departed" in card.title for card in found.cards)


def change(stored: StoredSweep, edit: Callable[[dict[str, Any]], object]) -> StoredSweep:
    facts = json.loads(stored.dir.sweep_file.read_text())
    edit(facts["sweep"])
    stored.dir.sweep_file.write_text(json.dumps(facts))
    return stored.dir.read()


def test_a_report_has_where_its_sweep_departed(tmp_path: Path) -> None:
    stored = registered(tmp_path)
    more = extended(stored, {"seeds": [0, 1, 2], "axes.loss.beta": [0.1, 1.0, 2.0]})
    stored.dir.write(more)
    stored = change(stored, lambda sweep: sweep["objective"].update(last_steps=2))
    run_all(stored, {(0, 0): [{"failure": "gone"}]}, Noted)
    sweep, found = make_report(stored)
    assert sweep.departures[:4] == (
        "seeds: 2 added",
        "β: 2 added",
        "objective.last_steps: 2, registered was 10",
        "1 failed run left out",
    )
    commit, prompts = sweep.departures[4:]
    assert commit.startswith("code commit cafe in 8 runs, registered was ")
    assert prompts == "prompts eeeeeeeeeeee in 8 runs, registered was dddddddddddd"
    (card,) = [card for card in found.cards if card.title == "Departed from preregistered.json"]
    assert card.claim == "; ".join(sweep.departures[2:])  # what was added has cards of its own
    assert "departed: seeds: 2 added; β: 2 added;" in stored.dir.page.read_text()


def test_a_search_with_more_trials_or_another_budget_departed(tmp_path: Path) -> None:
    axes = {"loss.beta": {"low": 0.1, "high": 1.0}}
    more = {"axes": axes, "primary": None, "sampler": "random", "trials": 2, "budget": {"hours": 1}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(more))
    stored = registered(tmp_path)
    stored.dir.write(extended(stored, {"trials": 3, "budget.hours": 2}))
    _, departed = departures(stored.dir.read(), [])
    assert departed == ("trials: 3, registered was 2", "budget.hours: 2.0, registered was 1.0")


class Noted(Launcher):
    """Runs of another commit, with other prompts."""

    def _end(self, job: Any) -> Any:
        ended = super()._end(job)
        if job.run_dir.path.exists():
            facts = {"git_commit": "cafe", "data_digest": "e" * 64}
            job.run_dir.provenance_file.write_text(json.dumps(facts))
        return ended


def test_a_sweep_that_was_not_registered_reports_as_before(tmp_path: Path) -> None:
    stored = stored_sweep(tmp_path)
    run_all(stored, {})
    sweep, _ = make_report(stored)
    assert (sweep.registered, sweep.departures) == ("", ())
    assert "Registered" not in stored.dir.page.read_text()


def test_a_registration_that_was_changed_is_refused(tmp_path: Path) -> None:
    stored = registered(tmp_path)
    stored.dir.preregistered_file.write_text("[]")
    with pytest.raises(SweepError, match=r"preregistered\.json: cannot be read"):
        make_report(stored)
