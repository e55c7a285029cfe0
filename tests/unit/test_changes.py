"""Lost and gained answers: counts by hand, p and interval against SciPy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grpo_core.evaluation.changes import AnswerChanges, answer_changes

PAIRS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


def test_counts_by_hand():
    before, after = (True, True, True, False, False, False), (True, False, True, True, True, False)
    found = answer_changes(before, after)
    assert found == AnswerChanges(right_before=3, lost=1, gained=2)
    assert found.retained is not None
    assert found.retained.value == pytest.approx(2 / 3)
    # By hand: 3 discordant, P(X <= 1) = (1 + 3) / 8, doubled and cut at 1.
    assert found.p == 1
    assert AnswerChanges(right_before=9, lost=0, gained=5).p == pytest.approx(2 / 32)


@given(pairs=PAIRS)
def test_p_and_interval_are_scipys(pairs):
    before, after = zip(*pairs, strict=True)
    found = answer_changes(before, after)
    assert sum(after) - sum(before) == found.gained - found.lost
    if found.lost + found.gained:
        assert found.p == pytest.approx(stats.binomtest(found.lost, found.lost + found.gained, 0.5).pvalue, rel=1e-9)
    else:
        assert found.p == 1
    if found.retained is None:
        assert not any(before)
        return
    kept = found.right_before - found.lost
    wilson = stats.binomtest(kept, found.right_before).proportion_ci(method="wilson")
    assert (found.retained.low, found.retained.high) == pytest.approx((wilson.low, wilson.high), abs=1e-9)


def test_prompts_must_be_the_same():
    with pytest.raises(ValueError, match="zip"):
        answer_changes([True], [True, False])


def test_where_none_was_right_nothing_is_retained_or_lost():
    assert str(answer_changes([False, False], [True, False])) == "none was right before; lost 0, gained 1 (McNemar's exact p 1)"
