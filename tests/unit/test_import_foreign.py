"""Settings of systems that are not read are refused by name, and nothing is written; what hardly maps is refused as well."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from flows.cli.app import app
from grpo_core.config import load_config
from grpo_core.errors import ConfigError
from grpo_core.interop.conversion import SYSTEMS, import_config, refuse_unread_system
from tests.support.imports import convert

DATA = Path(__file__).parents[1] / "data"
NAMES = {
    "verl": "verl",
    "openrlhf": "OpenRLHF",
    "nemo": "NeMo-RL",
    "prime": "prime-rl",
    "swift": "ms-swift",
    "open_instruct": "open-instruct",
    "agentic": "ROLL's agentic pipeline",
}
"""{how the names of its files begin: system}."""
FILES = sorted(path for path in (DATA / "foreign").iterdir() if path.suffix != ".md")
TRL: dict[str, Any] = {"num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 100}
START = "python train.py --num_generations 4 --per_device_train_batch_size 8 --max_steps 100 --use_peft"
NOT_READ = "not one of the four that are read"


def system_of(path: Path) -> str:
    """Return the system that a file is of."""
    return next(name for start, name in NAMES.items() if path.name.startswith(start))


def run(*arguments: str) -> tuple[int, str]:
    """Run the command; return its exit code and what it printed."""
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output + str(done.exception or "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("source", [None, "trl", "roll"])
def test_a_system_that_is_not_read_is_refused_by_its_name(path: Path, source: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        import_config(path, source)
    assert str(caught.value).startswith(f"config {path}: these are settings of {system_of(path)} (")
    assert NOT_READ in str(caught.value)


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".yaml"], ids=lambda path: path.name)
def test_a_section_around_the_settings_hides_nothing(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"these are settings of {system_of(path)}"):
        convert(tmp_path, {"job": {"parameters": yaml.safe_load(path.read_text())}})


def test_no_key_of_a_system_that_is_read_tells_of_another() -> None:
    keys = {key for system in SYSTEMS.values() for key in (*system.known(), *system.aliases)}
    refuse_unread_system(Path("a.yaml"), "", dict.fromkeys(keys))
    refuse_unread_system(Path("a.sh"), "\n".join(f"python train.py --{key} {key}" for key in keys), {})


@pytest.mark.parametrize(
    "line",
    [
        "# swift rlhf --rlhf_type grpo",
        "pip install verl openrlhf prime-rl",
        "cd /data/verl && export WANDB_PROJECT=open-instruct",
    ],
)
def test_a_name_in_passing_is_no_system(line: str, tmp_path: Path) -> None:
    assert convert(tmp_path, f"{line}\n{START}\n").config.rollout.group_size == 4


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (
            {"seed": 1, "rollout_n": 4, "critic": {}},
            "1 of 3 keys have a counterpart and 2 are unknown to TRL 1.16 (critic, rollout_n)",
        ),
        ({"env": {"math": 1}, "logger": {}}, "0 of 2 keys have a counterpart and 1 are unknown to TRL 1.16 (logger)"),
        ({"log_level": "info"}, "0 of 1 keys have a counterpart and 0 are unknown to TRL 1.16"),
        ({"grpo": {"learning_rate": 1e-5}, "model": {"name": "a"}}, "0 of 2 keys have a counterpart and 2 are unknown"),
    ],
)
def test_a_file_with_hardly_a_key_that_maps_is_refused(values: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(tmp_path, values, source="trl")
    assert named in str(caught.value)
    assert NOT_READ in str(caught.value)


def test_a_script_that_starts_something_else_is_refused_with_what_it_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has none of them: line 2 \(torchrun RL2\.trainer\.ppo\)"):
        convert(tmp_path, "set -x\ntorchrun --nproc_per_node=4 -m RL2.trainer.ppo adv.estimator=reinforce\n")


# Where the configuration goes


def test_the_output_is_written_whole_and_never_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(TRL))
    output = tmp_path / "mine.yaml"
    arguments = ("import-config", str(tmp_path / "settings.yaml"), "--output", str(output))
    code, printed = run(*arguments)
    assert (code, printed.count("\n")) == (0, 1)
    assert "keys of TRL 1.16: 3 mapped" in printed
    assert load_config(output).rollout.num_prompts_per_step == 2
    output.write_text("kept")
    code, printed = run(*arguments)
    assert code != 0
    assert f"output {output}: is there already, and nothing was changed" in printed
    assert output.read_text() == "kept"
    code, printed = run(*arguments[:-1], str(tmp_path / "none" / "mine.yaml"))
    assert code != 0
    assert "mine.yaml: cannot be written (No such file or directory)" in printed


@pytest.mark.parametrize(
    ("argument", "stray"),
    [
        ('--lora_target_modules "q_proj", "v_proj"', ["lora_target_modules: in 'q_proj,' the comma"]),
        ("--model_name_or_path Qwen/Qwen2.5-0.5B,", ["model_name_or_path: in 'Qwen/Qwen2.5-0.5B,' the comma"]),
        ("--lora_target_modules q_proj v_proj --fsdp full_shard,auto_wrap", []),
    ],
)
def test_a_comma_that_the_shell_hands_on_is_noted(argument: str, stray: list[str], tmp_path: Path) -> None:
    notes = [note for note in convert(tmp_path, f"{START} {argument}\n").notes if "comma" in note]
    assert [note.partition(" is part")[0] for note in notes] == stray


# Releases of TRL


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("1.16", (512, "importance", "token-mean", 0.0, 1.0)),
        ("1.10.0", (512, "importance", "token-mean", 0.0, 1.0)),
        ("1.9", (256, "none", "token-mean", 0.0, 1.0)),
        ("0.18", (256, "none", "token-mean", 0.04, 1.0)),
        ("0.17.0", (256, "none", "token-mean", 0.04, 0.9)),
    ],
)
def test_a_release_of_trl_has_its_own_defaults(release: str, expected: tuple[Any, ...], tmp_path: Path) -> None:
    imported = convert(tmp_path, TRL, trl_version=release)
    config = imported.config
    found = (
        config.rollout.max_completion_tokens,
        config.loss.kl_correction,
        config.loss.aggregation,
        config.loss.beta,
        config.rollout.temperature,
    )
    assert found == expected
    assert imported.title == f"TRL {re.match(r'[0-9]+.[0-9]+', release)[0]}"  # type: ignore[index]
    assert imported.notes[0].startswith(f"the defaults of {imported.title} are assumed")
    assert not any("--trl-version" in note for note in imported.notes)
    assert any("end token" in note for note in imported.notes) == (release in ("1.10.0", "1.9", "0.18", "0.17.0"))


def test_without_a_release_the_other_defaults_of_absent_keys_are_named(tmp_path: Path) -> None:
    (note,) = [note for note in convert(tmp_path, {**TRL, "beta": 0.0}).notes if "--trl-version" in note]
    parts = ("before 1.15", "max_completion_length 256", "use_bias_correction_kl False", "beta 0.04", "vllm")
    assert [part in note for part in parts] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("source", "release", "said"),
    [
        *((None, release, "give one from 0.17 to 1.16") for release in ("0.16", "1.17", "main", "1", "")),
        ("open-r1", "1.10", "has no effect on settings of open-r1"),
    ],
)
def test_a_release_that_was_not_read_is_refused(source: str | None, release: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"trl-version: .* {said}"):
        convert(tmp_path, TRL, source, trl_version=release)
