"""What depends on the processor that the tests run on."""

import pytest
import torch

packs_weights = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX512"), reason="weights are packed on processors with AVX-512"
)
PACKED = (False, pytest.param(True, marks=packs_weights))
