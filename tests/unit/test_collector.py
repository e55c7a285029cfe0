"""The collector of garbage, paused while modules are imported."""

import gc
from collections.abc import Iterator

import pytest

from grpo_core.machine.collector import gc_paused


@pytest.fixture(autouse=True)
def _leave_the_collector_as_it_was() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def test_nothing_is_collected_inside_and_what_is_there_afterwards_never_is() -> None:
    with gc_paused():
        assert not gc.isenabled()
        made = [[]]
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    assert not any(other is made for other in gc.get_objects())


def test_a_collector_that_was_off_stays_off_also_after_a_failed_import() -> None:
    with gc_paused(), pytest.raises(ImportError), gc_paused():
        import no_such_module  # noqa: F401
    assert gc.isenabled()
    gc.disable()
    with gc_paused():
        pass
    assert not gc.isenabled()
