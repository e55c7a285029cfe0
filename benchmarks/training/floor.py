"""A lower bound of what a step can take on this machine: each product in the fastest way there is, attention, and bytes.

    rollout   the prompts at once, then a product of each weight at each position with the rows that have not ended
    logps     forward products of prompts and completions, as often as the engine runs them
    update    the same once, and the products of both gradients; AdamW reads weight, gradient and two moments and writes three
              of them, and the gradient is read once more for its norm
    sync      forward passes as in logps; an EMA reads two sets of weights and writes one; the distance reads two

A product is tried plain, packed for oneDNN, and joined with those that read the same rows; the least of several repetitions
counts. Attention is the flash kernel on rows of the mean length, which is less work than rows of other lengths. Logits are
read once more than the products write them. Norms, activations and everything that Python does count nothing, so no engine
reaches it. The head is in float32, as `vocabulary_head` is.
"""

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from benchmarks.training.timed import TimedStep
from benchmarks.training.workload import WORKLOAD_FILE, Workload
from grpo_core.machine.hardware import avoid_broken_kernels
from grpo_core.policy.fast.grouped import flash_attention
from grpo_core.policy.fast.products import packed_product
from grpo_core.policy.loading import load_model

REPETITIONS, ENOUGH_SECONDS = 5, 2.0
"""What is timed is repeated so often, or for so long; and once before that, which does not count."""
FLOAT = 4
"""Bytes of a weight, a gradient, a moment or a logit."""
ADAMW_BYTES, EMA_BYTES, DISTANCE_BYTES = 8 * FLOAT, 3 * FLOAT, 2 * FLOAT
"""Of one weight."""
JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Matrices of a layer that read the same rows."""
Product = Callable[[Tensor], object]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """How many of them a step has."""

    prompts: Sequence[int]
    """Tokens of each prompt."""
    completions: Sequence[int]
    """Tokens of each completion, the end token included."""

    @classmethod
    def of(cls, step: TimedStep, num_prompts: int) -> "Tokens":
        """Share out a step's tokens to its prompts, which are about as long."""
        return cls(prompts=[step.prompt_tokens // num_prompts] * num_prompts, completions=step.completion_lengths)

    @property
    def run(self) -> int:
        """Tokens of a pass: a completion's last one predicts nothing."""
        return sum(self.prompts) + sum(self.completions) - len(self.completions)

    @property
    def predicted(self) -> int:
        """Tokens whose logits are computed."""
        return sum(self.completions)


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Attention of a model."""

    layers: int
    heads: int
    kv_heads: int
    size: int

    def seconds(self, tokens: Tokens) -> float:
        """Return the seconds of attention in one forward pass over a step."""
        prompts, rows = len(tokens.prompts), len(tokens.completions)
        width, own = sum(tokens.prompts) // prompts, max(1, sum(tokens.completions) // rows - 1)
        queries = rows // prompts * own * self.heads // self.kv_heads
        prompt = self._timed(prompts, self.heads, width, width, causal=True)
        return self.layers * (
            prompt
            + self._timed(prompts, self.kv_heads, queries, width, causal=False)
            + self._timed(rows, self.heads, own, own, causal=True)
        )

    def decoding(self, tokens: Tokens) -> float:
        """Return the seconds of attention of all positions after the prompt, each with the mean number of tokens before it."""
        prompts, positions = len(tokens.prompts), sum(tokens.completions) - len(tokens.completions)
        width, longest = sum(tokens.prompts) // prompts, max(tokens.completions)
        rows = max(1, positions // max(1, longest - 1))  # at a time, on average
        queries = max(1, rows // prompts) * self.heads // self.kv_heads
        before = max(1, positions // len(tokens.completions) // 2)
        a_position = self._timed(prompts, self.kv_heads, queries, width, causal=False) + self._timed(
            rows, self.kv_heads, self.heads // self.kv_heads, before, causal=False
        )
        return self.layers * (longest - 1) * a_position

    def _timed(self, batch: int, heads: int, queries: int, keys: int, *, causal: bool) -> float:
        query, key = torch.randn(batch, heads, queries, self.size), torch.randn(batch, heads, keys, self.size)
        return least_seconds(lambda: flash_attention(query, key, key, 0.0, causal))


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Matrices of a layer that read the same rows, in the type that is multiplied."""

    kind: str
    """The same in every layer."""
    weights: tuple[Tensor, ...]

    @cached_property
    def ways(self) -> tuple[Product, ...]:
        """Its products: apart and joined, plain and packed."""
        ways = []
        for weights in (self.weights, (torch.cat(self.weights),)) if len(self.weights) > 1 else (self.weights,):
            ways.append(_one_after_the_other([partial(_plain, weight) for weight in weights]))
            if torch.backends.mkldnn.is_available():
                ways.append(_one_after_the_other([packed_product(weight, None) for weight in weights]))
        return tuple(ways)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the work of a model takes here."""

    groups: tuple[Group, ...]
    """Of the backbone, in the order in which they are run."""
    head: Tensor
    """Weight of the head, in float32."""
    attention: Heads
    weights: int
    """How many numbers the model has."""
    bytes_per_second: float
    """Read or written, at best."""
    flops_per_second: float
    """Of a large product in the type that is multiplied: the ceiling."""

    @classmethod
    def of(cls, model: nn.Module, dtype: torch.dtype) -> "Machine":
        """Measure this machine with a model's weights."""
        head, config = model.get_output_embeddings(), model.config  # type: ignore[operator]
        found: dict[tuple[str, str], list[Tensor]] = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and module is not head:
                parent, _, own = name.rpartition(".")
                kind = next((names[0] for names in JOINED if own in names), own)
                found.setdefault((parent, kind), []).append(module.weight.detach().to(dtype))
        heads: Any = config
        return cls(
            groups=tuple(Group(kind=kind, weights=tuple(weights)) for (_, kind), weights in found.items()),
            head=head.weight.detach(),
            attention=Heads(
                layers=heads.num_hidden_layers,
                heads=heads.num_attention_heads,
                kv_heads=heads.num_key_value_heads,
                size=getattr(heads, "head_dim", None) or heads.hidden_size // heads.num_attention_heads,
            ),
            weights=sum(parameter.numel() for parameter in model.parameters()),
            bytes_per_second=_bandwidth(),
            flops_per_second=_ceiling(dtype),
        )

    def flops(self, tokens: int, head_tokens: int) -> int:
        """Return the floating-point operations of the products of one forward pass."""
        numbers = sum(weight.numel() for group in self.groups for weight in group.weights)
        return 2 * (tokens * numbers + head_tokens * self.head.numel())

    def forward(self, tokens: Tokens) -> float:
        """Return the seconds of one forward pass, its logits read once."""
        products = self._layers(tokens.run) + self._head(tokens.predicted)
        return products + self.attention.seconds(tokens) + self._logits(tokens.predicted)

    def backward(self, tokens: Tokens) -> float:
        """Return the seconds of the products that give both gradients; the gradient of the logits is written once."""
        plain = [weight for group in self.groups for weight in group.weights]
        products = self._gradients(tokens.run, plain) + self._gradients(tokens.predicted, [self.head])
        return products + self._logits(tokens.predicted)

    def rollout(self, tokens: Tokens) -> float:
        """Return the seconds of sampling, with completions that leave the batch as they end."""
        alive = [sum(length > position for length in tokens.completions) for position in range(max(tokens.completions))]
        sizes = sorted({*(2**power for power in range(len(tokens.completions).bit_length())), *alive[:1]})
        layers = np.interp(alive, sizes, [self._layers(rows) for rows in sizes])
        heads = np.interp(alive, sizes, [self._head(rows) for rows in sizes])
        prompts = self._layers(sum(tokens.prompts))  # whose last tokens give the first logits
        return prompts + float(layers[1:].sum() + heads.sum()) + self.attention.decoding(tokens)

    def optimizer(self) -> float:
        """Return the seconds of AdamW and of the gradient's norm."""
        return self.weights * ADAMW_BYTES / self.bytes_per_second

    def sync(self) -> float:
        """Return the seconds of a sync and of the distance that it covers, without passes."""
        return self.weights * (EMA_BYTES + DISTANCE_BYTES) / self.bytes_per_second

    def _layers(self, rows: int) -> float:
        """Each kind of group in the fastest of its ways: all layers are run in each, as their weights lie in memory then."""
        inputs = {weight.shape[1]: torch.randn(rows, weight.shape[1], dtype=weight.dtype) for (weight, *_) in self._weights}
        least: dict[str, float] = {}
        for way in range(max(len(group.ways) for group in self.groups)):
            for repetition in _repetitions():
                spent = Counter[str]()
                for group in self.groups:
                    began = time.perf_counter()
                    group.ways[way % len(group.ways)](inputs[group.weights[0].shape[1]])
                    spent[group.kind] += time.perf_counter() - began
                if repetition:
                    least = {kind: min(least.get(kind, math.inf), seconds) for kind, seconds in spent.items()}
        return sum(least.values())

    def _head(self, rows: int) -> float:
        states = torch.randn(rows, self.head.shape[1])
        return min(least_seconds(partial(product, states)) for product in self._head_group.ways)

    @cached_property
    def _weights(self) -> list[tuple[Tensor, ...]]:
        return [group.weights for group in self.groups]

    @cached_property
    def _head_group(self) -> Group:
        return Group(kind="head", weights=(self.head,))

    def _logits(self, rows: int) -> float:
        return rows * len(self.head) * FLOAT / self.bytes_per_second

    def _gradients(self, rows: int, weights: Sequence[Tensor]) -> float:
        """Of the inputs and of the weights, each into memory that is there."""
        inputs = {weight.shape[1]: torch.randn(rows, weight.shape[1], dtype=weight.dtype) for weight in weights}
        outputs = {weight.shape[0]: torch.randn(rows, weight.shape[0], dtype=weight.dtype) for weight in weights}
        before = {width: torch.empty_like(states) for width, states in inputs.items()}
        of_weights = {weight.shape: torch.empty_like(weight) for weight in weights}

        def products() -> None:
            for weight in weights:
                gradient, states = outputs[weight.shape[0]], inputs[weight.shape[1]]
                torch.mm(gradient, weight, out=before[weight.shape[1]])
                torch.mm(gradient.T, states, out=of_weights[weight.shape])

        return least_seconds(products)


def floor_of(step: TimedStep, machine: Machine, num_prompts: int) -> dict[str, float]:
    """Return the least seconds of each phase of a step, with as many passes as the engine made."""
    tokens = Tokens.of(step, num_prompts)
    forward = machine.forward(tokens)
    passes = step.passes or {"logps": 1}
    return {
        "rollout": machine.rollout(tokens),
        "logps": passes.get("logps", 0) * forward,
        "update": forward + machine.backward(tokens) + machine.optimizer(),
        "sync": passes.get("sync", 0) * forward + machine.sync(),
    }


def least_seconds(work: Callable[[], object]) -> float:
    """Return the least of some repetitions after one that does not count."""
    spent = []
    for _ in _repetitions():
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return min(spent[1:])


def _repetitions() -> Iterator[int]:
    began = time.perf_counter()
    for repetition in range(REPETITIONS + 1):
        yield repetition
        if repetition and time.perf_counter() - began > ENOUGH_SECONDS:
            return


def _plain(weight: Tensor, rows: Tensor) -> Tensor:
    return linear(rows, weight)


def _one_after_the_other(products: Sequence[Product]) -> Product:
    return lambda rows: [product(rows) for product in products]


def _bandwidth(numbers: int = 2**26) -> float:
    """Return the bytes a second of the fastest of reading, copying and adding large tensors."""
    first, second, total = torch.ones(numbers), torch.ones(numbers), torch.empty(numbers)
    seconds = {1: least_seconds(first.sum), 2: least_seconds(lambda: total.copy_(first))}
    seconds[3] = least_seconds(lambda: torch.add(first, second, out=total))
    return max(FLOAT * numbers * tensors / spent for tensors, spent in seconds.items())


def _ceiling(dtype: torch.dtype, width: int = 2048) -> float:
    first, second = torch.randn(width, width, dtype=dtype), torch.randn(width, width, dtype=dtype)
    return 2 * width**3 / least_seconds(lambda: first @ second)


@torch.no_grad()
def main() -> None:
    """Read a step from standard input; print its floor and what was measured for it."""
    avoid_broken_kernels()
    folder = Path(sys.argv[1])
    workload = Workload.from_json((folder / WORKLOAD_FILE).read_text())
    torch.set_num_threads(workload.threads)
    step = TimedStep.from_json(sys.stdin.readline())
    machine = Machine.of(load_model(folder / "model"), getattr(torch, workload.dtype))
    tokens = Tokens.of(step, workload.num_prompts)
    flops = machine.flops(tokens.run, tokens.predicted) / 1e9
    found = {
        "phases": floor_of(step, machine, workload.num_prompts),
        "passes": step.passes,
        "weights": machine.weights,
        "gflops_per_second": machine.flops_per_second / 1e9,
        "gigabytes_per_second": machine.bytes_per_second / 1e9,
        "update_gflops": 3 * flops,
        "logps_gflops": step.passes.get("logps", 0) * flops,
        "rollout_gflops": flops,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
