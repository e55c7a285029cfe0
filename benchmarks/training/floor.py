"""The least that a step can take on this machine: its matrix products run bare, and the bytes that it must move.

    rollout   the prompts at once, then one product per weight and position with the rows that have not ended
              (the head as well)
    logps     forward products of prompts and completions, once for the reference and once for the initial policy
    update    the same, forward and for both gradients; AdamW reads weight, gradient and two moments and writes three of them,
              and the gradient is read once more for its norm
    sync      an EMA reads two sets of weights and writes one

Attention, norms and activations count nothing, so no engine reaches it. The head is in float32, as `vocabulary_head` is.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from benchmarks.training.timed import TimedStep
from benchmarks.training.workload import WORKLOAD_FILE, Workload
from grpo_core.machine.hardware import avoid_broken_kernels
from grpo_core.policy.loading import load_model

REPETITIONS = 5
FLOAT = 4
"""Bytes of a weight, a gradient or a moment."""
UPDATE_BYTES, SYNC_BYTES = 8 * FLOAT, 3 * FLOAT
"""Of one weight."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the products of a model take here."""

    layers: tuple[Tensor, ...]
    """Weights of the backbone's products, in the type that is multiplied."""
    head: Tensor
    """Weight of the head, in float32."""
    weights: int
    """How many numbers the model has."""
    bytes_per_second: float
    """Read and written, from and to memory."""
    flops_per_second: float
    """Of a large product in the type that is multiplied: the ceiling."""

    @classmethod
    def of(cls, model: nn.Module, dtype: torch.dtype) -> "Machine":
        """Measure this machine with a model's weights."""
        head = model.get_output_embeddings()  # type: ignore[operator]
        layers = [module.weight.detach().to(dtype) for module in model.modules() if isinstance(module, nn.Linear)]
        return cls(
            layers=tuple(weight for weight in layers if weight.shape != head.weight.shape),
            head=head.weight.detach(),
            weights=sum(parameter.numel() for parameter in model.parameters()),
            bytes_per_second=_bandwidth(),
            flops_per_second=_ceiling(dtype),
        )

    def flops(self, tokens: int, head_tokens: int) -> int:
        """Return the floating-point operations of one forward pass."""
        return 2 * (tokens * sum(weight.numel() for weight in self.layers) + head_tokens * self.head.numel())

    def forward(self, tokens: int, head_tokens: int) -> float:
        """Return the seconds of the products of one forward pass."""
        return self._products(tokens, self.layers) + self._products(head_tokens, (self.head,))

    def backward(self, tokens: int, head_tokens: int) -> float:
        """Return the seconds of the products that give both gradients."""
        return self._gradients(tokens, self.layers) + self._gradients(head_tokens, (self.head,))

    def decoding(self, lengths: Sequence[int]) -> float:
        """Return the seconds of all positions after the prompt, of completions that leave the batch as they end."""
        alive = [sum(length > position for length in lengths) for position in range(max(lengths))]
        sizes = sorted({*(2**power for power in range(len(lengths).bit_length())), len(lengths), *alive[:1]})
        layers = np.interp(alive, sizes, [self._products(rows, self.layers) for rows in sizes])
        heads = np.interp(alive, sizes, [self._products(rows, (self.head,)) for rows in sizes])
        return float(layers[1:].sum() + heads.sum())  # the prompt's own pass gives the first token

    def _products(self, rows: int, weights: Sequence[Tensor]) -> float:
        inputs = {weight.shape[1]: torch.randn(rows, weight.shape[1], dtype=weight.dtype) for weight in weights}
        return median_seconds(lambda: [linear(inputs[weight.shape[1]], weight) for weight in weights])

    def _gradients(self, rows: int, weights: Sequence[Tensor]) -> float:
        inputs = {weight.shape[1]: torch.randn(rows, weight.shape[1], dtype=weight.dtype) for weight in weights}
        outputs = {weight.shape[0]: torch.randn(rows, weight.shape[0], dtype=weight.dtype) for weight in weights}

        def products() -> None:
            for weight in weights:
                gradient = outputs[weight.shape[0]]
                gradient @ weight
                gradient.T @ inputs[weight.shape[1]]

        return median_seconds(products)


def floor_of(step: TimedStep, machine: Machine) -> dict[str, float]:
    """Return the least seconds of each phase of a step."""
    generated = sum(step.completion_lengths)
    tokens = step.prompt_tokens + generated - len(step.completion_lengths)  # a last token predicts nothing
    forward = machine.forward(tokens, generated)
    return {
        "rollout": machine.forward(step.prompt_tokens, 1) + machine.decoding(step.completion_lengths),
        "logps": 2 * forward,
        "update": forward + machine.backward(tokens, generated) + machine.weights * UPDATE_BYTES / machine.bytes_per_second,
        "sync": machine.weights * SYNC_BYTES / machine.bytes_per_second,
    }


def median_seconds(work: Callable[[], object]) -> float:
    """Return the median of some repetitions after one that does not count."""
    spent = []
    for _ in range(REPETITIONS + 1):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent[1:])


def _bandwidth(numbers: int = 2**26) -> float:
    first, second, total = torch.ones(numbers), torch.ones(numbers), torch.empty(numbers)
    return 3 * FLOAT * numbers / median_seconds(lambda: torch.add(first, second, out=total))


def _ceiling(dtype: torch.dtype, width: int = 2048) -> float:
    first, second = torch.randn(width, width, dtype=dtype), torch.randn(width, width, dtype=dtype)
    return 2 * width**3 / median_seconds(lambda: first @ second)


@torch.no_grad()
def main() -> None:
    """Read a step from standard input; print its floor and what was measured for it."""
    avoid_broken_kernels()
    folder = Path(sys.argv[1])
    workload = Workload.from_json((folder / WORKLOAD_FILE).read_text())
    torch.set_num_threads(workload.threads)
    step = TimedStep.from_json(sys.stdin.readline())
    machine = Machine.of(load_model(folder / "model"), getattr(torch, workload.dtype))
    generated = sum(step.completion_lengths)
    tokens = step.prompt_tokens + generated - len(step.completion_lengths)
    found = {
        "phases": floor_of(step, machine),
        "weights": machine.weights,
        "gflops_per_second": machine.flops_per_second / 1e9,
        "gigabytes_per_second": machine.bytes_per_second / 1e9,
        "update_gflops": 3 * machine.flops(tokens, generated) / 1e9,
        "logps_gflops": 2 * machine.flops(tokens, generated) / 1e9,
        "rollout_gflops": machine.flops(tokens, generated) / 1e9,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
