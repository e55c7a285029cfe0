"""Part `attention`: which kernel attends for a decoded token, and its time at lengths that grow by one.

Queries are the heads that share a key, and the mask is a slice of a wider one, as in `policy/fast/lean.py`. A kernel that
is prepared for each new shape shows in the first pass over the lengths, and not in the second.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_check.part import Context, Figure, Result, Table
from benchmarks.gpu_check.timing import opened_device, seconds_of

LENGTHS = 64
LARGEST_DIFFERENCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""From attention in fp64, where values have a standard deviation of 1."""
OURS = "this project's flags"
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Rows that are decoded a token at a time."""

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
        """Return (query, keys, values, mask) of a token."""
        seen = self.first + number + 1
        mask = self.bias[..., :seen].expand(-1, 1, self.query.shape[2], -1)
        return self.query, self.keys[:, :, :seen], self.values[:, :, :seen], mask

    def attend(self) -> None:
        """Attend for every token."""
        for number in range(LENGTHS):
            query, keys, values, mask = self.inputs(number)
            functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)

    def difference(self) -> float:
        """Return the largest difference from fp64 at the last length."""
        query, keys, values, mask = self.inputs(LENGTHS - 1)
        found = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask).double()
        scores = query.double() @ keys.double().transpose(-1, -2) * query.shape[-1] ** -0.5 + mask.double()
        return float((found - scores.softmax(dim=-1) @ values.double()).abs().max())


@contextlib.contextmanager
def with_cudnn() -> Iterator[None]:
    """Allow cuDNN's attention while inside, as torch does by default."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def run(context: Context) -> Result:
    """Time each kernel alone, torch's own choice and this project's."""
    rows, first = (4, 16) if context.small else (256, 512)
    contexts: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
        OURS: contextlib.nullcontext,
        "torch's flags, with cuDNN": with_cudnn,
        **{f"{name} alone": partial(sdpa_kernel, kernel) for name, kernel in KERNELS.items()},
    }
    found, choices, wrong = [], {}, []
    with opened_device(context) as device:
        for dtype in (torch.bfloat16, torch.float32):
            decoding, name = Decoding.make(rows, first, dtype, device), str(dtype).removeprefix("torch.")
            for title, allowed in contexts.items():
                with allowed():
                    row = _measure(decoding, device)
                found.append((name, title, *row))
                if not title.endswith("alone"):
                    choices[f"{name}: {title}"] = row[0]
                if title == OURS and not _is_right(row[3], dtype):
                    wrong.append(name)
        update = _of_update(context, device)
    head = ("type", "allowed", "chosen", "first pass, ms a token", "second pass, ms a token", "largest difference from fp64")
    ours = choices[f"bfloat16: {OURS}"]
    failed = [f"differ from fp64: {', '.join(wrong)}"] if wrong else []
    failed += ["cuDNN is chosen although it is off"] if "CUDNN" in str(ours) else []
    return Result(
        verdict="failed" if failed else "passed",
        text="; ".join(failed) or f"{ours} is chosen for a decoded token, {update['update: this project']} for an update",
        figures={**choices, **update, "rows": rows, "lengths": f"{first + 1} to {first + LENGTHS}"},
        tables=(Table(title="A token's attention", head=head, rows=tuple(found)),),
    )


def _is_right(difference: Figure, dtype: torch.dtype) -> bool:
    return isinstance(difference, float) and difference < LARGEST_DIFFERENCE[dtype]


def _measure(decoding: Decoding, device: torch.device) -> tuple[str, Figure, Figure, Figure]:
    """Return (the kernel, ms a token at first, ms a token again, difference); None where no kernel fits."""
    try:
        chosen = choice(*decoding.inputs(0))
        first = seconds_of(decoding.attend, device)
        again = min(seconds_of(decoding.attend, device) for _ in range(3))
        return chosen, 1000 * first / LENGTHS, 1000 * again / LENGTHS, decoding.difference()
    except RuntimeError as error:
        if "backend" not in str(error) and "kernel" not in str(error):
            raise
        return "none that can", None, None, None


def choice(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> str:
    """Return the name of the kernel that torch takes; the function that says so is torch's own and has no public name."""
    ask = getattr(torch, "_fused_sdp_choice", None)
    return "unknown" if ask is None else SDPBackend(ask(query, keys, values, mask)).name


def _of_update(context: Context, device: torch.device) -> dict[str, Figure]:
    """Return what is chosen for completions behind a cached prompt, with gradient, where kernels must repeat and where not."""
    rows, tokens = (2, 8) if context.small else (16, 256)
    query = torch.randn(rows, 14, tokens, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
    keys = torch.randn(rows, 14, 2 * tokens, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
    mask = torch.ones(tokens, 2 * tokens, dtype=torch.bool, device=device).tril(tokens).expand(rows, 1, -1, -1)
    found: dict[str, Figure] = {"update: this project": choice(query, keys, keys, mask)}
    torch.use_deterministic_algorithms(True)
    try:
        found["update: deterministic"] = choice(query, keys, keys, mask)
    finally:
        torch.use_deterministic_algorithms(False)
    return found
