"""Which kernels a GPU runs for this project, how fast they are, and what a decoded token costs the host."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from benchmarks.random_models import MEDIUM, TINY, Shape, words
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy.fast.path import SamplingPath, why_not_lean
from grpo_core.policy.policy import Policy
from grpo_core.types import Prompt
from tests.gpu.conftest import Check, Figure
from tests.gpu.operations import CountedOperations
from tests.gpu.timing import median_seconds, seconds_of

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
Keep = Callable[[str, Figure], None]
PRECISIONS = {"fp32": (torch.float32, "highest"), "tf32": (torch.float32, "high"), "bf16": (torch.bfloat16, "highest")}


def test_products_and_copies_at_their_fastest(check: Check, figure: Keep) -> None:
    """Nothing to fail: what the machine can do, beside which other figures are read."""
    size = 256 if check.small else 8192
    with check.held() as device:
        for name, (dtype, precision) in PRECISIONS.items():
            torch.set_float32_matmul_precision(precision)
            left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
            seconds = median_seconds(partial(torch.matmul, left, right), device, 10)
            figure(f"{name} products, TFLOP/s", 2 * size**3 / 1e12 / seconds)
        torch.set_float32_matmul_precision("highest")
        source = torch.randn(4 * size, size, device=device)
        target = torch.empty_like(source)
        figure(
            "copies, GB/s read and written", 2 * source.nbytes / 1e9 / median_seconds(lambda: target.copy_(source), device, 10)
        )


LENGTHS = 64
LARGEST_DIFFERENCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""From attention in fp64, where values have a standard deviation of 1."""
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass(frozen=True, kw_only=True)
class Decoding:
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    bias: torch.Tensor
    first: int
    """Tokens that are there before the first."""

    @classmethod
    def make(cls, rows: int, first: int, dtype: torch.dtype, device: torch.device) -> "Decoding":
        """Return random rows of which every second has a prompt of half the length: Qwen2.5-0.5B's heads."""
        kv_heads, group, size, most = 2, 7, 64, first + LENGTHS
        torch.manual_seed(0)
        query = torch.randn(rows, kv_heads, group, size, device=device).to(dtype)
        keys, values = (torch.randn(rows, kv_heads, most, size, device=device).to(dtype) for _ in range(2))
        bias = torch.zeros(rows, 1, 1, most, device=device, dtype=dtype)
        bias[1::2, :, :, : first // 2] = -torch.inf
        return cls(query=query, keys=keys, values=values, bias=bias, first=first)

    def inputs(self, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        seen = self.first + number + 1
        mask = self.bias[..., :seen].expand(-1, 1, self.query.shape[2], -1)
        return self.query, self.keys[:, :, :seen], self.values[:, :, :seen], mask

    def attend(self) -> None:
        for number in range(LENGTHS):
            query, keys, values, mask = self.inputs(number)
            functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)

    def difference(self) -> float:
        query, keys, values, mask = self.inputs(LENGTHS - 1)
        found = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask).double()
        scores = query.double() @ keys.double().transpose(-1, -2) * query.shape[-1] ** -0.5 + mask.double()
        return float((found - scores.softmax(dim=-1) @ values.double()).abs().max())


def choice(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> str:
    """Return the name of the kernel that torch takes; the function that says so is torch's own and has no public name."""
    ask = getattr(torch, "_fused_sdp_choice", None)
    return "unknown" if ask is None else SDPBackend(ask(query, keys, values, mask)).name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_decoded_token_is_attended_without_cudnn(check: Check, figure: Keep, dtype: torch.dtype) -> None:
    """cuDNN plans anew for every length, which shows in the first pass over the lengths and not in the second."""
    with check.held() as device:
        decoding = Decoding.make(*((4, 16) if check.small else (256, 512)), dtype, device)
        chosen = choice(*decoding.inputs(0))
        figure("chosen", chosen)
        figure("first pass, ms a token", 1000 * seconds_of(decoding.attend, device) / LENGTHS)
        figure("second pass, ms a token", 1000 * seconds_of(decoding.attend, device) / LENGTHS)
        for name, kernel in KERNELS.items():
            figure(f"{name} alone, ms a token", _alone(decoding, kernel, device))
        assert "CUDNN" not in chosen
        assert decoding.difference() < LARGEST_DIFFERENCE[dtype]


def _alone(decoding: Decoding, kernel: SDPBackend, device: torch.device) -> float | str:
    try:
        with sdpa_kernel(kernel):
            return 1000 * min(seconds_of(decoding.attend, device) for _ in range(2)) / LENGTHS
    except RuntimeError:
        return "cannot"


TOKENS, LAYERS = (32, 96), (2, 4)
KEY = RandomKey(seed=0, stream=Stream.TRAIN, step=1)
NEVER = -1
"""An end token that is never drawn."""
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaLaunchCooperativeKernel")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def test_a_layer_launches_less_than_transformers(check: Check, figure: Keep) -> None:
    """Differences of two numbers of layers and of tokens: neither the prompt nor the head counts for a layer.

    On a CPU operations are counted instead of launches.
    """
    shape, rows = (TINY, 2) if check.small else (MEDIUM, 32)
    per_layer: dict[str, float] = {}
    with check.held() as device:
        for way in ("lean", "transformers"):
            few, many = (_policy(replace(shape, layers=layers), way, device) for layers in LAYERS)
            (of_few, _), (of_many, waits) = (_of_token(policy, rows, device) for policy in (few, many))
            per_layer[way] = (of_many - of_few) / (LAYERS[1] - LAYERS[0])
            figure(f"{way}: per token and layer", per_layer[way])
            figure(f"{way}: waits per token", waits)
            short, long = (median_seconds(_sample(many, rows, tokens), device, 3) for tokens in TOKENS)
            figure(f"{way}: ms a token, {LAYERS[1]} layers", 1000 * (long - short) / (TOKENS[1] - TOKENS[0]))
    assert why_not_lean(many.model, "bfloat16", packed=False) is None
    assert per_layer["lean"] < per_layer["transformers"]


def _policy(shape: Shape, way: str, device: torch.device) -> Policy:
    return Policy(
        model=shape.model().to(device),
        tokenizer=words(shape.vocabulary),
        eos_token_ids=(NEVER,),
        dtype="bfloat16",
        path=SamplingPath(lean=way == "lean"),
    )


def _sample(policy: Policy, rows: int, tokens: int) -> Callable[[], object]:
    prompts = [
        Prompt(id=number, content="", text="", token_ids=(5, 6, 7 + number)[: 2 + number], columns={}) for number in range(2)
    ]
    settings = SamplingSettings(group_size=rows // 2, max_completion_tokens=tokens)
    return lambda: policy.sample(prompts, settings, KEY)


def _of_token(policy: Policy, rows: int, device: torch.device) -> tuple[float, float]:
    few, many = (_counted(_sample(policy, rows, tokens), device) for tokens in TOKENS)
    return (many[0] - few[0]) / (TOKENS[1] - TOKENS[0]), (many[1] - few[1]) / (TOKENS[1] - TOKENS[0])


def _counted(call: Callable[[], object], device: torch.device) -> tuple[int, int]:
    """Return (launches, waits) of a call on a GPU, (operations, waits) on a CPU."""
    call()  # what happens once is no part of it
    if device.type == "cpu":
        with CountedOperations() as counted:
            call()
        return counted.operations.total(), counted.waits
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiled:
        call()
        torch.cuda.synchronize(device)
    names = Counter(event.name for event in profiled.events())
    return sum(names[name] for name in LAUNCHES), sum(names[name] for name in WAITS)
