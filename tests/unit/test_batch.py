"""How a step's rows are cut: micro-batches by tokens, mini-batches by a seeded shuffle."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.policy.forward import microbatches
from grpo_core.training.batch import split_minibatches
from tests.policies import completions_of

SETTINGS = settings(max_examples=60)


def batch_of(prompt_lengths, completion_lengths):
    """A batch of which only the lengths matter."""
    group = len(completion_lengths) // len(prompt_lengths)
    of_rows = [row // group for row in range(len(completion_lengths))]
    return completions_of([(7,) * one for one in prompt_lengths], of_rows, [(7,) * one for one in completion_lengths])[0]


def cost(batch, rows):
    """Padded tokens of one pass: each prompt once at the longest one's width, each completion at the longest one's."""
    prompts = {row // batch.group_size for row in rows}
    return len(prompts) * max(len(batch.prompts[prompt].token_ids) for prompt in prompts) + len(rows) * max(
        int(batch.completion_mask[row].sum()) for row in rows
    )


def test_micro_batches_by_hand():
    batch = batch_of([10, 4], [3, 5, 2, 6])
    # rows 0, 1: one prompt of 10, two completions of 5 -> 20; with row 2 a second prompt: 2 x 10 + 3 x 5 = 35
    # rows 2, 3: 4 + 2 x 6 = 16; all four: 2 x 10 + 4 x 6 = 44
    assert microbatches(batch, range(4), 44) == [[0, 1, 2, 3]]
    assert microbatches(batch, range(4), 43) == [[0, 1, 2], [3]]
    assert microbatches(batch, range(4), 34) == [[0, 1], [2, 3]]
    assert microbatches(batch, range(4), 19) == [[0], [1], [2, 3]]
    assert microbatches(batch, range(4), 15) == [[0], [1], [2], [3]]


@SETTINGS
@given(data=st.data(), budget=st.integers(1, 80))
def test_micro_batches_cover_the_rows_once_in_order_within_the_budget(data, budget):
    prompts = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    group_size = data.draw(st.integers(1, 4))
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=len(prompts) * group_size, max_size=len(prompts) * group_size))
    batch = batch_of(prompts, lengths)
    rows = data.draw(st.lists(st.sampled_from(range(len(lengths))), min_size=1, unique=True).map(sorted))
    pieces = microbatches(batch, rows, budget)
    assert [row for piece in pieces for row in piece] == rows
    for piece in pieces:
        assert len(piece) == 1 or cost(batch, piece) <= budget
    for piece, following in pairwise(pieces):
        assert cost(batch, [*piece, following[0]]) > budget  # no piece could have held more


@SETTINGS
@given(num_rows=st.integers(2, 40), data=st.data())
def test_minibatches_are_a_partition_into_nearly_equal_shares(num_rows, data):
    count = data.draw(st.integers(2, num_rows))
    shares = split_minibatches(num_rows, count, seed=data.draw(st.integers(0, 9)), step=4, epoch=1)
    assert sorted(row for share in shares for row in share) == list(range(num_rows))
    assert len(shares) == count
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert all(share == sorted(share) for share in shares)


def test_minibatches_are_a_function_of_seed_step_and_epoch():
    first = split_minibatches(24, 3, seed=1, step=2, epoch=0)
    assert split_minibatches(24, 3, seed=1, step=2, epoch=0) == first
    for changed in ({"seed": 2}, {"step": 3}, {"epoch": 1}):
        assert split_minibatches(24, 3, **{"seed": 1, "step": 2, "epoch": 0, **changed}) != first
