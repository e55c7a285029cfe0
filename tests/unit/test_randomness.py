"""Counter-based uniforms: a number depends on what it picks, not on what else is drawn."""

import numpy as np
import pytest
from scipy import stats

from grpo_core.data.prompts import prompts_of_step
from grpo_core.generation.sampler import RandomKey, Stream, sample_rows, token_uniforms
from grpo_core.generation.vllm.sampler import requests_of
from grpo_core.types import Prompt

ROWS = [(3, 0), (3, 1), (8, 0), (12, 5)]


def uniforms(rows=ROWS, positions=6, seed=1, stream=Stream.TRAIN, step=2):
    return token_uniforms(seed, stream, step, rows, positions)


def test_a_row_does_not_depend_on_the_rows_beside_it():
    together = uniforms()
    for index, row in enumerate(ROWS):
        assert np.array_equal(uniforms([row])[0], together[index])
    assert np.array_equal(uniforms(ROWS[::-1]), together[::-1])


@pytest.mark.parametrize("changed", [{"seed": 2}, {"stream": Stream.EVAL}, {"stream": Stream.PROBE}, {"step": 3}], ids=str)
def test_seed_stream_and_step_give_other_numbers(changed):
    assert not np.isin(uniforms(**changed), uniforms()).any()


def test_numbers_are_uniform_in_0_to_1():
    numbers = uniforms([(prompt, 0) for prompt in range(500)], 20).ravel()
    assert 0 <= numbers.min() < numbers.max() < 1
    # Kolmogorov-Smirnov over 10,000 numbers; the first draw of each row alone as well.
    assert stats.kstest(numbers, "uniform").pvalue > 0.01
    assert stats.kstest(numbers.reshape(500, 20)[:, 0], "uniform").pvalue > 0.01


def test_the_numbers_are_numpys_philox_with_the_documented_key_and_counter():
    generator = np.random.Generator(np.random.Philox(key=[7, 2], counter=[0, 5, 11, 3]))
    assert np.array_equal(token_uniforms(7, Stream.EVAL, 5, [(11, 3)], 4)[0], generator.random(4))


def test_the_numbers_never_change_between_versions():
    # Recorded once: a run is reproduced from its seed, so the stream itself is a contract.
    assert uniforms([(3, 1)], 3)[0].tolist() == [0.6945161129433838, 0.7701450670100504, 0.36539771806265464]


PROMPTS = [Prompt(id=number, content="", text="", token_ids=(number,), columns={}) for number in range(100)]


def test_no_two_completions_of_a_step_have_the_same_numbers_in_either_engine():
    repeated = 0
    for step in range(1, 201):
        prompts = prompts_of_step(PROMPTS, 64, seed=0, step=step)
        repeated += len({prompt.id for prompt in prompts}) < 64
        rows = uniforms(sample_rows(prompts, 4), 2, step=step)
        assert len(np.unique(rows)) == rows.size == 64 * 4 * 2
        key = RandomKey(seed=0, stream=Stream.TRAIN, step=step)
        assert len({request.seed for request in requests_of(prompts, 4, key)}) == 64 * 4
    assert repeated > 100  # steps in which one pass over the data ends and the next begins, with a prompt in both


def test_larger_groups_begin_with_the_same_numbers_where_a_prompt_occurs_again_too():
    twice = [PROMPTS[3], PROMPTS[8], PROMPTS[3]]
    small, large = (np.array(sample_rows(twice, size)).reshape(3, size, 2) for size in (4, 6))
    assert np.array_equal(small, large[:, :4])
