"""What a reward function is given: the same values of the same types in rehearsal and training."""

from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from grpo_core.data.sources import first_rows
from grpo_core.rewards.dry_run import dry_run, untokenized
from grpo_core.run.journal import Journal
from grpo_core.training.session import FRESH, open_session
from grpo_core.training.signals import StopRequest
from grpo_core.training.step import run_step

pytestmark = pytest.mark.proof

STEPS = 10
GIVEN: list[tuple[str, str]] = []
"""Question, and everything else that a function got of its row."""


def types_of(value: Any) -> Any:
    """Return a value with the names of all types in it."""
    if isinstance(value, dict):
        return {key: types_of(item) for key, item in value.items()}
    return [types_of(item) for item in value] if isinstance(value, list) else (type(value).__name__, value)


def strikes(prompts: Any, completions: Any, nums: Any, marks: Any, **columns: Any) -> list[float | None]:
    """Strike numbers off the list, change whatever can be changed, and keep what was there before."""
    for row, prompt in enumerate(prompts):
        own = {name: values[row] for name, values in columns.items()}
        if "answer" in own:  # the rehearsal looks whether a function needs it
            GIVEN.append((prompt[-1]["content"], repr(types_of([prompt, nums[row], own, marks]))))
    values: list[float | None] = []
    for row, completion in enumerate(completions):
        values.append(float(len(nums[row]) + columns["facts"][row]["parts"] + len(completion[0]["content"]) / 100))
        nums[row].clear()
        columns["facts"][row]["parts"] = 0
        prompts[row][-1]["content"] = completion[0]["content"] = ""
    marks.append(len(values))
    return values


def test_rehearsal_and_training_give_the_same_to_a_function_that_changes_it(tiny_run: Any, tmp_path: Any) -> None:
    count = 12
    table = {
        "question": [f"{number} + 1 =" for number in range(count)],
        "answer": list(range(1, count + 1)),
        "nums": [[number, None, 7] for number in range(count)],
        "level": [None, *range(1, count)],
        "facts": [{"parts": number} for number in range(count)],
    }
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "rows.parquet")
    keys = {"data.source": f"file:{tmp_path / 'rows.parquet'}", "data.task_args": {}, "data.size": None}
    reward = {"fn": f"{__name__}:strikes", "args": {"marks": [1]}}
    run_dir = tiny_run({**keys, "data.eval_fraction": 0.5, "rewards": [reward], "evaluation.every_steps": None})
    config = run_dir.read_config()
    GIVEN.clear()
    assert not list(dry_run(0, config, untokenized(first_rows(config.data, count), config)))
    rehearsed = sorted(set(GIVEN))
    GIVEN.clear()
    session, state = open_session(run_dir, Journal(run_dir.journal_file), StopRequest(run_dir.stop_file, None)), FRESH
    for _ in range(STEPS):
        state = run_step(session, state).state
    trained = sorted(set(GIVEN))
    session.close()
    session.journal.close()
    assert (len(rehearsed), len(trained)) == (count, count // 2)  # one value for each row
    assert set(trained) < set(rehearsed)
    assert "[('int', 3), ('NoneType', None), ('int', 7)], {" in dict(rehearsed)["3 + 1 ="]
    assert "'level': ('int', 3)" in dict(rehearsed)["3 + 1 ="]
