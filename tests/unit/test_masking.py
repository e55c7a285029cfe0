"""The completion mask: every sampled token through the first end-of-sequence token."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.algorithm.masking import completion_mask, is_eos

EOS = 9


def mask_of(rows, eos=(EOS,)):
    return completion_mask(torch.tensor(rows), eos).long().tolist()


def test_the_first_end_token_counts_and_nothing_after_it():
    assert mask_of([[5, 6, EOS, 7, EOS]]) == [[1, 1, 1, 0, 0]]


def test_padding_with_the_end_token_is_masked():
    assert mask_of([[5, EOS, EOS, EOS], [EOS, EOS, EOS, EOS]]) == [[1, 1, 0, 0], [1, 0, 0, 0]]


def test_a_row_without_end_token_is_whole():
    assert mask_of([[5, 6, 7], [5, 6, EOS]]) == [[1, 1, 1], [1, 1, 1]]


def test_any_of_several_end_tokens_ends():
    assert mask_of([[5, 8, 6, EOS], [5, EOS, 6, 8]], eos=(EOS, 8)) == [[1, 1, 0, 0], [1, 1, 0, 0]]


def test_is_eos_marks_every_occurrence():
    assert is_eos(torch.tensor([1, EOS, 8, 2]), (EOS, 8)).tolist() == [False, True, True, False]


@settings(max_examples=60)
@given(row=st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_equals_cutting_the_list_after_the_first_end_token(row):
    length = row.index(0) + 1 if 0 in row else len(row)
    mask = completion_mask(torch.tensor([row]), (0,))
    assert mask.dtype == torch.bool
    assert mask[0].tolist() == [True] * length + [False] * (len(row) - length)
