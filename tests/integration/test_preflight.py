"""What is found before a run has a folder: rewards that fail, hang or end their process, models, data, disk, memory."""

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import ConfigError, ModelError
from grpo_core.policy.sources.find import require_model
from grpo_core.run import preflight
from grpo_core.run.child import import_folders, is_own_folder
from grpo_core.run.preflight import check_start, require_start

REWARDS = '''"""Reward functions with a mistake each."""
import helpers_of_this_test


def good(prompts, completions, answer, **columns):
    print("{}")
    assert [message[0]["content"] for message in completions] == answer and len(prompts) == 8
    return [1.0] * len(completions)


def fails(completions, **columns):
    return helpers_of_this_test.level(columns)


def text(completions, **columns):
    return [completion.strip() for completion in completions]


def few(completions, **columns):
    return [1.0]


def leaves(completions, **columns):
    raise SystemExit("enough")


def dies(completions, **columns):
    import os
    os._exit(5)


def nones(completions, **columns):
    return [None] * len(completions)


def huge(completions, **columns):
    return [1e300] * len(completions)


def hangs(completions, **columns):
    import time
    open("hangs.pid", "w").write(str(__import__("os").getpid()))
    time.sleep(1000)


def anything(completions, answer, **columns):
    return [1.0] * len(completions)


def distance(completions, **columns):
    numbers = [float(message[0]["content"].replace("x", "nan") or 0) for message in completions]
    return [0.0 if abs(number - float(gold)) > 0 else 1.0 for number, gold in zip(numbers, columns["answer"])]


def not_worse(completions, answer, **columns):
    texts = [message[0]["content"] for message in completions]
    wrong = [text.isdigit() and text != gold for text, gold in zip(texts, answer)]
    return [-1.0 if is_wrong else 0.0 for is_wrong in wrong]


def boxed(completions, answer, **columns):
    return [float("boxed{" + gold in message[0]["content"]) for message, gold in zip(completions, answer)]


def brevity(completions, **columns):
    return [1.0 / (1 + len(message[0]["content"])) for message in completions]


def drift(history):
    return None
'''
HELPERS = "def level(columns):\n    # the mistake\n    return columns['level']\n"


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration and reward functions in it, which is not where the command runs."""
    (tmp_path / "here").mkdir()
    folder = tmp_path / "beside"
    folder.mkdir()
    (folder / "rewards_of_this_test.py").write_text(REWARDS)
    (folder / "helpers_of_this_test.py").write_text(HELPERS)
    (folder / "broken_of_this_test.py").write_text("x = 1\ndef f(:\n")
    (folder / "run.yaml").write_text("{}\n")
    rows = ({"question": f"{number} + 1 =", "answer": str(number + 1)} for number in range(20))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path / "here")
    return folder


@pytest.fixture
def faults(tiny_config: Callable[..., Any], beside: Path) -> Callable[..., tuple[str, ...]]:
    """Return a function that checks a configuration of the tiny model with some reward functions."""

    def check(*functions: str, overrides: dict[str, Any] | None = None, part: str = "faults", **keys: Any) -> tuple[str, ...]:
        rewards = [{"fn": fn if ":" in fn else f"rewards_of_this_test:{fn}", **keys} for fn in functions]
        # Not a task of reasoning-gym, whose import takes a second in each process.
        data = {"data.source": f"file:{beside / 'rows.jsonl'}", "data.task_args": {}}
        config = tiny_config({**data, "rewards": rewards or [{"fn": "exact_answer"}], **(overrides or {})})
        found: tuple[str, ...] = getattr(check_start(config, import_folders(config, beside / "run.yaml")), part)
        return found

    return check


def test_each_mistake_of_a_reward_function_is_one_line_with_its_place(faults: Any, beside: Path) -> None:
    names = ["good", "fails", "text", "few", "leaves", "nothing", "nowhere_of_this_test:f", "broken_of_this_test:g"]
    found = faults(*names)
    assert not [fault for fault in found if "\n" in fault or "Traceback" in fault]
    by_name = {name: [fault for fault in found if f":{name}: " in fault] for name in names[:6]}
    assert by_name["good"] == []
    for name, *parts in (
        ("fails", "raised KeyError: 'level'", f"{beside}/helpers_of_this_test.py, line 3", "first 8 rows"),
        ("text", "raised AttributeError", f"{beside}/rewards_of_this_test.py, line 16", "list of messages, as in TRL"),
        ("few", "returned 1 values for 8 completions"),
        ("leaves", "ended its process with sys.exit(enough)"),
        ("nothing", "cannot be imported", "has no attribute 'nothing'"),
    ):
        (fault,) = by_name[name]
        assert fault.startswith(f"rewards.{names.index(name)}.fn rewards_of_this_test:{name}: ")
        for part in parts:
            assert part in fault, (part, fault)
    nowhere, broken = found[-2:]
    assert nowhere.endswith(f"looked for in {Path.cwd()} and {beside}")
    assert "SyntaxError" in broken
    assert f"{beside}/broken_of_this_test.py, line 2" in broken


def test_a_function_that_hangs_is_killed(faults: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "REWARD_SECONDS", 3.0)
    (fault,) = faults("hangs")
    assert fault == (
        "rewards.0.fn rewards_of_this_test:hangs: has not returned after 3 s and was killed; rewards.0.dry_run=false does not "
        "call it"
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("hangs.pid").read_text()), 0)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"data.source": "file:nowhere.jsonl"}, "data.source file:nowhere.jsonl: no such file"),
        ({"data.prompt_column": "query"}, "data.prompt_column: no column 'query' in file:"),
        (
            {"data.source": "reasoning_gym:chain_sum", "data.task_args": {"nothing": 1}},
            "data.task_args {'nothing': 1}: chain_sum refuses them",
        ),
        (
            {"rollout.max_prompt_tokens": 3},
            "20 prompts has, so none would be left; the longest has 11: rollout.max_prompt_tokens=16",
        ),
        ({"training.python": "/nowhere/python"}, "training.python: '/nowhere/python' is no program that can be run"),
        ({"training.python": "/bin/ls"}, "training.python /bin/ls: its process died (exit code 2"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_other_mistakes_are_found(faults: Any, overrides: dict[str, Any], said: str) -> None:
    assert said in faults(overrides=overrides)[0]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nobody/nothing", "model.source 'nobody/nothing': is no folder, is not in the hub's cache"),
        ("no body", "model.source 'no body': is no folder"),
        ("bundled:nothing", "no such model; known: bundled:smollm2-135m, scratch:sums"),
        ("scratch:nothing", "no such model; known: bundled:smollm2-135m, scratch:sums"),
    ],
)
def test_a_model_that_cannot_be_had_is_refused_by_its_name(source: str, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        require_model(source)
    assert said in str(caught.value)


def test_a_tracking_server_that_is_not_there_is_refused(faults: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.delenv("HTTP_PROXY", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert faults(overrides={"tracking.uri": address}) == ()
    (fault,) = faults(overrides={"tracking.uri": address})
    assert fault.startswith(f"tracking.uri {address}: the tracking server cannot be reached (")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    assert faults() == (fault,)


def test_a_function_that_rewards_wrong_answers_is_a_warning(faults: Any) -> None:
    *_, anything, distance, not_worse = faults("anything", "distance", "not_worse", part="warnings")
    assert "rewards.0.fn rewards_of_this_test:anything: the constant 'nan' scores 1 on average" in anything
    assert "so do 14 of 14 other wrong answers" in anything
    assert distance.startswith(
        "rewards.1.fn rewards_of_this_test:distance: raised ValueError: could not convert string to float"
    )
    assert "line 5" in distance
    assert distance.endswith("rows with the constant '{}' as completions; a completion like that would end the run")
    assert (
        "not_worse: the constant 'nan' scores 0 on average over the first 8 rows, where the gold answers score 0; " in not_worse
    )


def test_other_mistakes_are_found_at_once(faults: Any) -> None:
    vllm = {"rollout.engine": "vllm", "rollout.vllm.python": "/nowhere/python", "training.threads": 1}
    rules = [{"kind": "custom", "function": "os:getcwd"}]
    several = {"tracking.uri": "http://[::1", "rewards": [{"fn": "reasoning_gym"}], "monitor.rules": rules}
    found = faults(overrides={**vllm, **several})
    expected = (
        "tracking.uri http://[::1: the tracking server cannot be reached (Invalid IPv6 URL)",
        "rollout.vllm.python: /nowhere/python",
        "'metadata'; the columns of the data are answer",
        "monitor.rules.0.function os:getcwd: cannot be called as f(history): too many positional arguments",
    )
    assert len(found) == len(expected)
    for fault, part in zip(found, expected, strict=True):
        assert part in fault


def test_all_mistakes_are_listed_at_once_and_a_run_without_one_has_none(
    faults: Any, beside: Path, tiny_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = faults("nowhere", overrides={"model.source": "nobody/nothing"})
    rows = ({"question": f"{number} + 1 =", "answer": str(number + 1)} for number in range(120))
    (beside / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"data.source": f"file:{beside / 'many.jsonl'}", "data.task_args": {}, "rewards": [{"fn": "exact_answer"}]}
    enough = {"data.eval_fraction": 0.5, "evaluation.num_prompts": 40}  # to measure an accuracy
    assert [fault.split(":")[0].split()[0] for fault in found] == ["model.source", "rewards.0.fn"]
    assert require_start(tiny_config({**data, **enough}), ()) == ()
    with pytest.raises(ConfigError, match=r"model\.source 'nobody/nothing'"):
        require_start(tiny_config({**data, "model.source": "nobody/nothing"}), ())
    monkeypatch.setenv("HOME", str(Path(sys.executable).parent))
    there = {"training.python": f"~/{Path(sys.executable).name}", "model.source": "nobody/nothing"}  # nothing to look at
    assert faults(overrides=there) == found[:1]


def test_folders_into_which_others_can_write_are_not_ones_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert is_own_folder(tmp_path)
    tmp_path.chmod(0o757)
    assert not is_own_folder(tmp_path)
    assert not is_own_folder(tmp_path / "nothing")
