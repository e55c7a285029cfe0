"""Mutated configurations go all the way: those that are accepted train one step, or end with one clear line."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given

from grpo_core.config import RunConfig, validate_config
from grpo_core.data.frozen import freeze
from grpo_core.data.prepare import read_prompts
from grpo_core.errors import GrpoError
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.training.__main__ import main
from tests.mutated.oracle import Tally, assert_clear, limited_time, search
from tests.mutated.strategies import as_json, mutated_trees

CAPS = {
    "training": {"steps": 1, "rollout_rows": 64, "microbatch_tokens": 20_000},
    "rollout": {"num_prompts_per_step": 4, "group_size": 6, "max_completion_tokens": 12, "max_prompt_tokens": 128},
    "data": {"size": 150},
    "loss": {"epochs_per_rollout": 2, "minibatches": 3},
}
"""What a mutation must not enlarge: it would be valid, and take hours."""
TASK_ARGS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def capped(config: RunConfig) -> RunConfig:
    """Return a configuration with the sizes that decide time and memory cut to CAPS."""
    values = config.model_dump(mode="json")
    for section, caps in CAPS.items():
        for key, most in caps.items():
            values[section][key] = min(values[section][key] or most, most)
    values["data"]["task_args"] = TASK_ARGS
    return validate_config(values)


def mutable(config: RunConfig) -> dict[str, Any]:
    """Every key that decides a training; the model's path and MLflow's are left alone."""
    values = config.model_dump(mode="json")
    return {key: value for key, value in values.items() if key not in ("model", "tracking", "monitor")}


@pytest.mark.proof
def test_accepted_mutations_train_or_say_in_one_line_why_not(
    tiny_config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    valid = tiny_config()
    kept = {key: valid.model_dump(mode="json")[key] for key in ("model", "tracking", "monitor")}
    number = itertools.count()
    tally = Tally([as_json(mutable(valid))])

    @search(120)
    @given(tree=mutated_trees(mutable(valid)))
    def run(tree: Any) -> None:
        assume(isinstance(tree, dict))
        content = as_json(tree)
        assume(content not in tally.valid)
        try:
            config = capped(validate_config({**tree, **kept}))
        except GrpoError:
            return  # test_mutated_files.py judges refusals
        run_dir = RunDir(tmp_path / f"run{next(number)}")
        with limited_time():
            code = prepared(run_dir, config) or main([str(run_dir.path)])
        said = capsys.readouterr().err
        assert "Traceback" not in said
        assert code in (0, 1, 2)
        if run_dir.journal_file.exists():
            end = read_journal(run_dir.journal_file)[-1]
            assert (end.kind, end.data["status"] == "finished") == ("end", code == 0)
            if code:
                assert_clear(said.splitlines()[-1])
        tally.count(content, parsed=True, accepted=code == 0)

    run()
    tally.check("trainings", 15, 15, refuses=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_said_in_one_line(tiny_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tiny_run({"training.device": "cuda"})
    assert main([str(run_dir.path)]) == 2
    assert capsys.readouterr().err.startswith("training.device: cuda, but torch finds no CUDA device here")


def prepared(run_dir: RunDir, config: RunConfig) -> int:
    """Make the run and its prompts as the flow does; return the exit code of a refusal, else 0."""
    run_dir.create(config)
    try:
        freeze(read_prompts(config), config.data.source, run_dir.data)
    except GrpoError as error:
        assert_clear(str(error))
        return error.exit_code
    return 0
