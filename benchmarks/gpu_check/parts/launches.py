"""Part `launches`: what a decoded token costs the host: kernels that it launches, and waits for the device.

Two numbers of layers and two of tokens, of which the differences are taken: neither the prompt nor the head counts for a layer.
On a CPU operations are counted instead.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_check.operations import CountedOperations
from benchmarks.gpu_check.part import Context, Figure, Result, Table
from benchmarks.gpu_check.timing import median_seconds, opened_device
from benchmarks.random_models import MEDIUM, TINY, Shape, words
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy.fast.lean import why_not_lean
from grpo_core.policy.fast.path import SamplingPath
from grpo_core.policy.policy import Policy
from grpo_core.types import Prompt

TOKENS = (32, 96)
LAYERS = (2, 4)
KEY = RandomKey(seed=0, stream=Stream.TRAIN, step=1)
NEVER = -1
"""An end token that is never drawn."""
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaLaunchCooperativeKernel")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Of one call."""

    launches: int
    waits: int
    kernels: Counter[str]
    """By name."""


def run(context: Context) -> Result:
    """Count for this project's layers and for transformers'."""
    shape, rows = (TINY, 2) if context.small else (MEDIUM, 32)
    tables, figures, texts = [], dict[str, Figure](), []
    with opened_device(context) as device:
        for way in ("lean", "transformers"):
            policies = [_policy(replace(shape, layers=layers), way, device) for layers in LAYERS]
            of_token = [_of_token(policy, rows, device) for policy in policies]
            per_layer = (of_token[1][0] - of_token[0][0]) / (LAYERS[1] - LAYERS[0])
            figures |= {
                f"{way}: per token and layer": per_layer,
                f"{way}: per token beside layers": of_token[0][0] - LAYERS[0] * per_layer,
                f"{way}: waits per token": of_token[1][1],
                f"{way}: ms a token, {LAYERS[1]} layers": 1000 * _seconds_of_token(policies[1], rows, device),
            }
            texts.append(f"{way} {per_layer:.1f}")
            tables.append(_table(way, policies[1], rows, device))
    what = "launches" if context.device == "cuda" else "operations (no device: no launches)"
    return Result(
        verdict="measured",
        text=f"{what} per token and layer: {', '.join(texts)}",
        figures={**figures, "rows": rows, "why not lean": _why(policies[1])},
        tables=tuple(tables),
    )


def _policy(shape: Shape, way: str, device: torch.device) -> Policy:
    return Policy(
        model=shape.model().to(device),
        tokenizer=words(shape.vocabulary),
        eos_token_ids=(NEVER,),
        dtype="bfloat16",
        path=SamplingPath(lean=way == "lean"),
    )


def _why(policy: Policy) -> str | None:
    return why_not_lean(policy.model, "bfloat16", packed=False)


def _sample(policy: Policy, rows: int, tokens: int) -> Callable[[], object]:
    prompts = [
        Prompt(id=number, content="", text="", token_ids=(5, 6, 7 + number)[: 2 + number], columns={}) for number in range(2)
    ]
    settings = SamplingSettings(group_size=rows // 2, max_completion_tokens=tokens)
    return lambda: policy.sample(prompts, settings, KEY)


def _of_token(policy: Policy, rows: int, device: torch.device) -> tuple[float, float]:
    """Return (launches, waits) of a token."""
    few, many = (counted(_sample(policy, rows, tokens), device) for tokens in TOKENS)
    tokens = TOKENS[1] - TOKENS[0]
    return (many.launches - few.launches) / tokens, (many.waits - few.waits) / tokens


def _seconds_of_token(policy: Policy, rows: int, device: torch.device) -> float:
    few, many = (median_seconds(_sample(policy, rows, tokens), device, 3) for tokens in TOKENS)
    return (many - few) / (TOKENS[1] - TOKENS[0])


def counted(call: Callable[[], object], device: torch.device) -> Counts:
    """Count launches and waits of a call on a GPU, operations on a CPU."""
    call()  # what happens once is no part of it
    if device.type != "cuda":
        with CountedOperations() as operations:
            call()
        return Counts(launches=operations.operations.total(), waits=operations.waits, kernels=operations.operations)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        call()
        torch.cuda.synchronize(device)
    events = profiled.events()
    kernels = Counter(event.name for event in events if event.device_type == DeviceType.CUDA)
    return Counts(
        launches=sum(event.name in LAUNCHES for event in events),
        waits=sum(event.name in WAITS for event in events),
        kernels=kernels,
    )


def _table(way: str, policy: Policy, rows: int, device: torch.device) -> Table:
    found = counted(_sample(policy, rows, TOKENS[1]), device)
    most = tuple((name[:80], count / TOKENS[1]) for name, count in found.kernels.most_common(12))
    return Table(title=f"The most frequent, {way}, {LAYERS[1]} layers", head=("what", "per token"), rows=most)
