"""What a beginner types wrong in the first hour, and the words that lead on: one row a mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli.app import VERBS
from grpo_core.config import Origin, load_config, validate_config
from grpo_core.data.prompts import few_prompts
from grpo_core.errors import GrpoError
from grpo_core.run.child import import_folders
from grpo_core.run.folder import RunDir, add_alert
from grpo_core.run.journal import Journal
from tests.support.commands import grpo

TYPED: list[tuple[list[str], str]] = [
    (["train", "quickstrat"], "did you mean quickstart?"),
    (["train", "quickstart", "loss.betta=0.1"], "loss.betta: unknown key; did you mean loss.beta?"),
    (["train", "quickstart", "num_generations=8"], "num_generations is TRL's name: here rollout.group_size"),
    (["train", "quickstart", "learning_rate=1e-5"], "learning_rate is TRL's name: here optimizer.lr"),
    (["train", "quickstart", "max_steps=3"], "max_steps is TRL's name: here training.steps"),
    (["train", "quickstart", "report_to=wandb"], "report_to is TRL's name: here tracking.also"),
    (["train", "quickstart", "--lr", "1e-5"], "--lr: no such option; did you mean optimizer.lr=1e-5, without dashes?"),
    (["train", "quickstart", "--num-generations=8"], "num_generations is TRL's name: here rollout.group_size"),
    (["train", "quickstart", "data.source=openai/gsm8k"], "did you mean hub:openai/gsm8k?"),
    (["train", "quickstart", "data.source=rows.jsonl"], "did you mean file:rows.jsonl?"),
    (["train", "quickstart", "data.source=chain_sum"], "did you mean reasoning_gym:chain_sum?"),
    (["train", "quickstart", "training.device=cuda:1"], "got 'cuda:1'; choose a card with CUDA_VISIBLE_DEVICES=1"),
    (["sweep", "configs/quickstart.yaml"], "this is a run's file, which `grpo train` takes; a sweep's has `base`"),
    (["list"], "did you mean `grpo runs`?"),
    (["logs", "runs/one"], "did you mean `grpo status`?"),
    (["dashboard"], "did you mean `grpo compare`?"),
]


@pytest.mark.parametrize(("typed", "said"), TYPED, ids=[" ".join(typed) for typed, _ in TYPED])
def test_a_mistake_is_answered_with_the_way_on(typed: list[str], said: str) -> None:
    done = grpo(*typed)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_help_lists_the_verbs_in_groups() -> None:
    shown = grpo("--help").stdout
    titles = ["Start", "Watch", "Sweep", "Hand on", "Servers", "Repair"]
    places = [shown.index(f" {title} ─") for title in titles]
    assert places == sorted(places)
    assert [verb for verb in VERBS if f"│ {verb} " not in shown] == []


@pytest.fixture
def finished(tmp_path: Path, tiny_config: Any) -> RunDir:
    """The folder of a run that has come to its end, with a warning of its start and two alerts."""
    run_dir = RunDir(tmp_path / "runs" / "one")
    run_dir.create(tiny_config(), Origin(preset="tiny"))
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {"warnings": ["rollout.group_size: 1 gives every completion an advantage of 0"]})
    journal.append("step", 4, {"metrics": {"reward/mean": 0.25}})
    journal.append("alert", 4, {"text": "of the training"})
    journal.append("end", 4, {"status": "finished", "reason": None})
    journal.close()
    add_alert(run_dir, 4, "of a rule", "no_signal")
    return run_dir


def test_a_finished_run_is_not_resumed_and_says_how_to_go_on(finished: RunDir) -> None:
    done = grpo("train", "--resume", str(finished.path))
    way_on = f"grpo train --continue {finished.path}"
    more = f"already finished; more steps: `{way_on} training.steps=8`"
    track = f"what MLflow may lack of it: `grpo track {finished.path}`"
    assert (done.returncode, done.stdout.splitlines()) == (0, [more, track])
    refused = grpo("train", "--resume", str(finished.path), "training.steps=9", "optimizer.lr=1e-6")
    assert refused.returncode == 2
    assert f"`{way_on} training.steps=9 optimizer.lr=1e-6`" in refused.stderr


def test_warnings_and_alerts_stay_in_sight(finished: RunDir) -> None:
    lines = grpo("status", str(finished.path)).stdout.splitlines()
    assert "warning: rollout.group_size: 1 gives every completion an advantage of 0" in lines
    assert [line for line in lines if line.startswith("alert: ")] == ["alert: of the training", "alert: of a rule"]
    (row,) = json.loads(grpo("runs", str(finished.path.parent), "--json").stdout)
    assert row["alerts"] == 2


@pytest.mark.parametrize(
    ("prompts", "steps", "said"),
    [
        ((1000, 100), 40, []),
        ((18, 2), 40, ["8 of the 18", "± 0.7"]),
        ((18, 30), 2, []),
        ((5, 9), 40, ["more than the 5", "± 0.3"]),
    ],
)
def test_few_prompts_are_a_warning(prompts: tuple[int, int], steps: int, said: list[str]) -> None:
    rollout = {"num_prompts_per_step": 8}
    config = validate_config({"data": {"source": "file:rows.jsonl"}, "rollout": rollout, "training": {"steps": steps}})
    found = few_prompts(config, *prompts)
    assert len(found) == len(said)
    assert all(words in text for words, text in zip(said, found, strict=True))


def test_a_rate_far_above_the_presets_is_a_warning() -> None:
    changes = {"optimizer.lr": (1e-5, 0.5)}
    assert Origin(preset="quickstart", changes=changes).warnings == (
        "optimizer.lr: 0.5 is 50,000 times that of quickstart (1e-05)",
    )
    assert Origin(preset="quickstart", changes={"optimizer.lr": (1e-5, 1e-3)}).warnings == ()


def test_paths_of_a_file_lead_from_its_folder_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "beside.jsonl").write_text("{}")
    (tmp_path / "mine" / "rewards.py").write_text("")
    file = tmp_path / "mine" / "config.yaml"
    sources = {"beside": "mine/beside.jsonl", "elsewhere": "elsewhere.jsonl"}
    for name, found in sources.items():
        file.write_text(f"data: {{source: 'file:{name}.jsonl'}}\nrewards: [{{fn: 'mine.rewards:f'}}]\n")
        assert load_config("mine/config.yaml").data.source == f"file:{found}"
    monkeypatch.chdir(tmp_path / "mine")
    file.write_text(file.read_text().replace("elsewhere", "beside"))
    assert load_config("config.yaml").data.source == "file:beside.jsonl"
    # The module is named from the folder above.
    assert str(tmp_path) in import_folders(load_config("config.yaml"), "config.yaml")


def test_a_misspelt_reward_is_named_with_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_core.rewards.base import load_rewards

    (tmp_path / "first_hour_of_mine").mkdir()  # without __init__.py
    (tmp_path / "first_hour_of_mine" / "rewards.py").write_text("def right_number(): ...\ndef short(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = validate_config({"rewards": [{"fn": "first_hour_of_mine.rewards:right_numbr"}]})
    with pytest.raises(GrpoError, match=r"did you mean right_number\? \(functions there: right_number, short\)"):
        load_rewards(config.rewards)
