"""The `grpo` command in a process of its own: what it prints, and its exit codes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import RunConfig, load_config, validate_config
from grpo_core.config.loading import parse_yaml
from grpo_core.run.folder import RunDir, add_alert
from grpo_core.run.journal import Journal
from tests.support.commands import grpo

ROOT = Path(__file__).parents[2]
QUICKSTART = "configs/quickstart.yaml"
TINY = "configs/sums_tiny_cpu.yaml"
"""Fits every disk."""


def resolved(output: str) -> RunConfig:
    """Return the configuration that `check` printed."""
    return validate_config(parse_yaml(output.partition("\n\n")[0]))


def test_check_prints_the_resolved_configuration() -> None:
    done = grpo("check", TINY, "loss.beta=1e-3", "rollout.group_size=8", "model.dtype=float32")
    assert done.returncode == 0, done.stderr
    wanted = {"loss.beta": 1e-3, "rollout.group_size": 8, "model.dtype": "float32"}
    assert resolved(done.stdout) == load_config(ROOT / TINY, wanted)
    assert "advantage_rms_factor: 0.9354" in done.stdout  # sqrt(7 / 8)
    assert "effective beta: 0.001 x mean KL per token" in done.stdout
    assert done.stdout.endswith("0 warning(s); the configuration is valid, and the run can start here\n")


def test_check_prints_how_large_an_adapter_is() -> None:
    """32 x 28 layers x (2 x 3072 of queries and outputs, 2 x 1792 of keys and values, 3 x 10496 of the MLP) = 36,929,536."""
    asked = ("check", "gsm8k_qwen25_1.5b_80gb", "--device-memory", "80", "optimizer.lr=1e-5")
    done = grpo(*asked, "model.lora.rank=32", "reference.sync_steps=5", "reference.mixup_alpha=0.5", "model.lora.alpha=16")
    assert done.returncode == 0, done.stderr
    assert (
        "\nadapter: 36,929,536 weights are trained, 2.39 % of the model's (148 MB); scale 0.5 = alpha 16 / rank 32; "
        in done.stdout
    )
    assert "reference of rank 128 at most" in done.stdout
    assert "weights of the adapter x 4 (policy, initial policy, two moments of AdamW) + reference" in done.stdout
    as_json = json.loads(grpo(*asked, "model.lora.rank=32", "--json").stdout)["adapter"]
    assert (as_json["weights"], as_json["bytes"], as_json["scale"]) == (36_929_536, 4 * 36_929_536, 2.0)
    assert json.loads(grpo(*asked, "--json").stdout)["adapter"] is None
    refused = grpo(*asked, "model.lora.rank=300")
    assert refused.returncode == 2
    assert "model.lora.rank: 300 is more than 256, the smaller side of model.layers.0.self_attn.k_proj" in refused.stderr


@pytest.mark.parametrize("verb", ["check", "train"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([QUICKSTART, "loss.bta=1"], "did you mean loss.beta?"),
        ([QUICKSTART, "loss.beta"], "expected key.path=value"),
        ([QUICKSTART, "optimizer.warmup_steps=70", "optimizer.schedule=linear"], "optimizer.warmup_steps: 70 must be below"),
        (["configs/quikstart.yaml"], "did you mean quickstart.yaml?"),
    ],
)
def test_a_bad_configuration_is_one_message_and_exit_code_2(verb: str, arguments: list[str], said: str) -> None:
    done = grpo(verb, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("error:") == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_status_of_a_folder_that_is_no_run_is_exit_code_2(tmp_path: Path) -> None:
    done = grpo("status", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: run dir {tmp_path}: no readable config.json")
    assert "Traceback" not in done.stderr


def test_status_says_where_a_run_is_and_shows_hostile_text_as_text(tmp_path: Path, tiny_config: Callable[..., Any]) -> None:
    run_dir = RunDir(tmp_path / "run\nerror: forged \x1b[31m")
    run_dir.create(tiny_config())
    add_alert(run_dir, 1, "alert \x1b]0;owned\x07\nerror: forged \u202e http://me:s3cret@host")
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    journal.append("step", 1, {"metrics": {"reward/mean": 0.25, "kl/ref/drift": 0.125}})
    journal.append("end", 1, {"status": "stopped", "reason": "because \x9b2J\nerror: forged"})
    journal.close()
    done = grpo("status", str(run_dir.path))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert all(line.isprintable() for line in lines)
    assert "run\\nerror: forged \\x1b[31m: stopped, step 1 of 4, 0 reference sync(s)" in lines[0]
    assert lines[1] == "reason: because \\x9b2J\\nerror: forged"
    assert "alert: alert \\x1b]0;owned\\x07\\nerror: forged \\u202e http://***@host" in lines
    assert any("reward/mean" in line and "0.25" in line for line in lines)
