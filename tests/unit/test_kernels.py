"""Which kernels torch may choose: none of cuDNN's attention, and in the trainer's passes none that does not repeat."""

import pytest
import torch

from grpo_core.errors import TrainingError
from grpo_core.policy.device import choose_kernels, strictly_deterministic


@pytest.fixture(autouse=True)
def as_before():
    wanted, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    attention = torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.use_deterministic_algorithms(wanted, warn_only=warned)
    torch.backends.cuda.enable_cudnn_sdp(attention)


def state():
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def test_a_warning_is_enough_outside_of_the_trainers_passes_and_not_inside():
    choose_kernels(deterministic=True)
    assert state() == (True, True)
    with strictly_deterministic():
        assert state() == (True, False)
    assert state() == (True, True)
    choose_kernels(deterministic=False)
    with strictly_deterministic():
        assert state() == (False, False)
    assert state() == (False, False)


def test_an_operation_without_such_a_kernel_is_named():
    choose_kernels(deterministic=True)
    place = torch.tensor([0])
    with pytest.raises(TrainingError, match=r"training\.deterministic: put_.* set it to false"), strictly_deterministic():
        torch.zeros(2).put_(place, torch.ones(1))
    assert state() == (True, True)
    choose_kernels(deterministic=False)
    with strictly_deterministic():
        torch.zeros(2).put_(place, torch.ones(1))
