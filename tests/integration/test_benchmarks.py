"""The benchmarks run, and count what they say that they count."""

import json
from pathlib import Path

import pytest

from benchmarks import sampling


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


def test_an_engine_that_makes_too_few_tokens_is_no_figure(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "NO_TOKEN", 7)  # now some completions end early
    with pytest.raises(RuntimeError, match=r"embedded made \d+ tokens instead of 16 x 60"):
        sampling.main(
            ["--model", str(tiny_model_dir), "--engines", "embedded", "--batches", "16", "--tokens", "60", "--threads", "1"]
        )


def test_a_batch_that_is_no_multiple_of_the_prompts_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sampling.main(["--batches", "16", "40"])
    assert "--batches [40]: expected multiples of 16" in capsys.readouterr().err
