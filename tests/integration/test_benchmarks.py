"""The benchmarks run, and count what they say that they count."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks import recorded_step, sampling, scaling
from benchmarks.training import __main__ as training
from benchmarks.training import report
from grpo_core.run.folder import RunDir
from grpo_core.training.__main__ import main as train


def test_sampling_is_measured_with_every_token_made(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "figures" / "sampling.json"
    asked = ["--model", str(tiny_model_dir), "--engines", "embedded", "transformers", "--batches", "16", "32", "--tokens", "5"]
    sampling.main([*asked, "--repetitions", "3", "--threads", "1", "--output", str(output)])
    found = json.loads(output.read_text())
    assert found["seconds"].keys() == {"16", "32"}
    for batch, engines in found["seconds"].items():
        assert engines.keys() == {"embedded", "transformers"}
        for name, spent in engines.items():
            assert len(spent) == 3
            assert found["tokens_per_second"][batch][name] == pytest.approx(int(batch) * 5 / sorted(spent)[1])
    printed = capsys.readouterr()
    assert [line.split("|")[1].strip() for line in printed.out.splitlines() if line.startswith("| ")] == ["batch", "16", "32"]
    assert len([line for line in printed.err.splitlines() if "tokens/s" in line]) == 2 * 2 * 3


@pytest.mark.slow
def test_a_step_is_measured_on_both_engines_in_turns(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "figures" / "training.json"
    asked = ["--model", str(tiny_model_dir), "--workloads", "forced", "--dtypes", "float32", "--steps", "4", "--warm-up", "1"]
    training.main([*asked, "--threads", "1", "--output", str(output)])
    (result,) = json.loads(output.read_text())["results"]
    assert result["steps"].keys() == {"native", "native-as-trl", "trl", "trl-as-started"}
    for name, steps in result["steps"].items():
        assert len(steps) == 4
        for step in steps:
            assert step["completion_lengths"] == [32] * 16
            assert step["seconds"] >= sum(step["phases"].values()) > 0
        counted = sorted(step["seconds"] for step in steps[1:])
        assert result["engines"][name]["seconds"] == pytest.approx(counted[1])
        assert result["ratio_of_first"][name] == pytest.approx(
            result["engines"]["native"]["seconds"] / result["engines"][name]["seconds"]
        )
    assert all(step["phases"]["sync"] > 0 for step in result["steps"]["native"])
    # The initial policy is the reference until the first sync; each sync is measured before and after.
    alone, both, synced = {"logps": 1}, {"logps": 2}, {"sync": 2}
    assert [step["passes"] for step in result["steps"]["native"]] == [alone, alone | synced, both, both | synced]
    assert [step["passes"] for step in result["steps"]["native-as-trl"]] == [alone] * 4
    assert [floor["passes"] for floor in result["floors"]] == [alone | synced, both, both | synced]
    pairs = list(zip(result["steps"]["native"][1:], result["floors"], strict=True))
    for phase, over in result["over_floor"]["phases"].items():
        found = [
            (step["phases"][phase], floor["phases"][phase])
            for step, floor in pairs
            if phase != "sync" or "sync" in step["passes"]
        ]
        assert len(found) == (2 if phase == "sync" else 3)
        assert over == pytest.approx(statistics.median(seconds / least for seconds, least in found))
        assert result["floor"]["phases"][phase] == pytest.approx(statistics.median(least for _, least in found))
        assert over > 1
    assert report.faults([result]) == []
    result["over_floor"]["phases"]["logps"] = 0.99
    assert report.faults([result]) == ["forced, float32: logps took 0.99 of its floor, which is no floor"]
    printed = capsys.readouterr()
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in printed.out.splitlines() if line.startswith("| forced")]
    assert rows == [["forced", "float32", name] for name in ("native", "native-as-trl", "trl", "trl-as-started", "floor")]
    turns = [line.partition(": ")[2].split()[0] for line in printed.err.splitlines() if line.startswith("forced")]
    assert turns == ["native", "native-as-trl", "trl", "trl-as-started"] * 4
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(900)  # six works, with a process for each and for each of their floors
def test_steps_are_measured_for_group_sizes_models_and_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ((16, 1), (32, 2))
    shapes = tuple(
        scaling.Shape(hidden=h, intermediate=4 * h, layers=n, heads=2, kv_heads=1, vocabulary=4096) for h, n in sizes
    )
    monkeypatch.setattr(scaling, "SHAPES", shapes)
    output = tmp_path / "figures" / "scaling.json"
    asked = ["--model", str(tiny_model_dir), "--groups", "4", "16", "--prompts", "0", "128"]
    scaling.main([*asked, "--steps", "2", "--threads", "1", "--dtype", "float32", "--output", str(output)])
    found = json.loads(output.read_text())
    assert [row["group_size"] for row in found["groups"]] == [4, 16]
    vocabulary, per_layer = 4096, [2 * h * h + 2 * h * h // 2 + 3 * 4 * h * h + 2 * h for h in (16, 32)]
    assert [row["weights"] for row in found["sizes"]] == [
        vocabulary * 16 + per_layer[0] + 16,
        vocabulary * 32 + 2 * per_layer[1] + 32,
    ]
    short, long = found["prompts"]
    assert short["group_size"] == long["group_size"] == 16
    assert short["prompt_tokens"] < 128 <= long["prompt_tokens"] < 192
    for row in (*found["groups"], *found["sizes"], *found["prompts"]):
        assert row["seconds"] == row["steps"][1]  # the first of two is the warm-up
        assert row["seconds"] >= sum(row["phases"].values()) > 0
        assert row["floor"] > 0
    printed = capsys.readouterr().out
    assert all(f"| {title} | step, s |" in printed for title in ("group size", "weights", "tokens of the prompt"))
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_recorded_step_is_the_drift_of_its_completions(tiny_run: Callable[..., RunDir], tmp_path: Path) -> None:
    run_dir = tiny_run({"training.steps": 2, "optimizer.lr": 0.01, "reference.sync_steps": None})
    assert train([str(run_dir.path)]) == 0
    asked = ["--step", "2", "--prompts", "70", "--completions", "5", "--out", str(tmp_path / "step.npz")]
    recorded_step.main([str(run_dir.path), *asked])
    with np.load(tmp_path / "step.npz") as found:
        rows = {name: found[name] for name in ("prompt", "tokens", "k1", "k3", "full")}
    assert {len(values) for values in rows.values()} == {70 * 5}
    assert set(np.unique(rows["prompt"], return_counts=True)[1]) == {5}
    assert rows["tokens"].min() >= 1
    assert rows["k3"].min() >= -1e-6
    mean, error = rows["k1"].mean(), rows["k1"].std() / np.sqrt(len(rows["k1"]))
    assert abs(rows["full"].mean() - mean) < 4 * error
    assert rows["full"].mean() > 0
