"""What a reward function is given: the same values of the same types in rehearsal, training, evaluation and resume."""

from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from grpo_core.data.sources import read_rows
from grpo_core.policy.saved import list_checkpoints
from grpo_core.rewards.dry_run import dry_run, untokenized
from grpo_core.run.journal import Journal
from grpo_core.training.ending import StopRequest
from grpo_core.training.session import FRESH, Session, open_session
from grpo_core.training.step import run_step

pytestmark = pytest.mark.proof

STEPS = 50
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


def opened(run_dir: Any) -> Session:
    return open_session(run_dir, Journal(run_dir.journal_file), StopRequest(run_dir.stop_file, None))


def closed(session: Session) -> None:
    session.close()
    session.journal.close()


def test_rehearsal_training_evaluation_and_resume_give_the_same_to_a_function_that_changes_it(
    tiny_run: Any, tmp_path: Any
) -> None:
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
    config, phases = run_dir.read_config(), []
    GIVEN.clear()

    def phase() -> None:
        phases.append(sorted(set(GIVEN)))
        GIVEN.clear()

    list(dry_run(0, config, untokenized(read_rows(config.data, count), config)))
    phase()
    session, state = opened(run_dir), FRESH
    for _ in range(STEPS):
        state = run_step(session, state).state
    phase()
    result = session.evaluator.evaluate(session.eval_prompts, samples=2)
    assert {type(completion["answer"]) for completion in result.completions} == {str}  # of a table
    phase()
    session.begin_checkpoint(state)
    closed(session)
    session = opened(run_dir)
    assert session.restore().step == STEPS == int(list_checkpoints(run_dir.checkpoints)[-1].name.rpartition("_")[2])
    for _ in range(2):
        state = run_step(session, state).state
    phase()
    closed(session)

    rehearsed, trained, evaluated, resumed = (dict(found) for found in phases)
    assert [len(found) for found in phases] == [count, count // 2, count // 2, count // 2]  # one value for each row
    assert {**trained, **evaluated} == rehearsed
    assert resumed == trained
    assert "[('int', 3), ('NoneType', None), ('int', 7)], {" in rehearsed["3 + 1 ="]
    assert "'level': ('int', 3)" in rehearsed["3 + 1 ="]
