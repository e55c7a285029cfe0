"""The collector of garbage, paused while modules are imported."""

import gc

from grpo_core.machine.process import gc_paused


def test_nothing_is_collected_inside_and_what_is_there_afterwards_never_is() -> None:
    try:
        with gc_paused():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
        gc.disable()
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
