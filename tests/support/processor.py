"""What depends on the processor that the tests run on."""

import pytest
import torch

from grpo_core.machine.hardware import has_bfloat16_kernels

packs_weights = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="weights are packed on processors with AVX"
)
packs_bfloat16 = pytest.mark.skipif(not has_bfloat16_kernels(), reason="this processor has no fast products in bfloat16")
PACKED = (False, pytest.param(True, marks=packs_bfloat16))
