"""Shapes of models whose phases are measured against the estimates of memory: on a CPU by a test, on a GPU by tests/gpu."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaForCausalLM

from benchmarks.random_models import Shape, words
from grpo_core.config import RunConfig, load_config
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings, Stream
from grpo_core.policy.device import Dtype
from grpo_core.policy.fast.path import SamplingPath
from grpo_core.policy.lora.adapted import with_adapter
from grpo_core.policy.policy import Policy
from grpo_core.run.memory import logps_bytes, rollout_bytes, update_bytes
from grpo_core.run.sizes import ModelShape
from grpo_core.types import Prompt


@dataclass(frozen=True)
class Work:
    """A model and the completions of a step."""

    shape: Shape
    prompts: int
    group: int
    prompt_tokens: int
    completion_tokens: int
    dtype: Dtype
    rank: int | None = None
    """Of an adapter; None = all weights are trained."""
    targets: tuple[str, ...] | None = None
    """Linear layers that get one; None = all but the vocabulary head."""

    def model(self) -> tuple[LlamaForCausalLM, ModelShape]:
        """Return a model of random weights and its shape."""
        model = self.shape.model()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        return model, ModelShape.of(self.shape.config().to_dict(), parameters)

    def config(self) -> RunConfig:
        """Return a step of the work, and nothing else that samples."""
        return load_config(
            "quickstart",
            {
                "model.dtype": self.dtype,
                "rollout.num_prompts_per_step": self.prompts,
                "rollout.group_size": self.group,
                "rollout.max_prompt_tokens": self.prompt_tokens,
                "rollout.max_completion_tokens": self.completion_tokens,
                "evaluation.num_prompts": 1,
                "evaluation.samples": 1,
                "evaluation.k": [1],
                "probe.every_steps": None,
                "reference.kl_full_every": None,
                "model.lora": None if self.rank is None else {"rank": self.rank, "target_modules": self.targets},
            },
        )

    def completions(self, device: torch.device) -> SampledCompletions:
        """Return completions that are all as long as they may be."""
        ids = tuple(range(5, 5 + self.prompt_tokens))
        tokens = torch.randint(5, self.shape.vocabulary - 1, (self.prompts * self.group, self.completion_tokens), device=device)
        return SampledCompletions(
            prompts=tuple(Prompt(id=n, content="", text="", token_ids=ids, columns={}) for n in range(self.prompts)),
            group_size=self.group,
            completion_ids=tokens,
            completion_mask=torch.ones_like(tokens, dtype=torch.bool),
            sampling_per_token_logps=torch.zeros(tokens.shape, device=device),
        )


WORKS = {
    "SmolLM2's proportions": Work(
        Shape(hidden=576, intermediate=1536, layers=12, heads=9, kv_heads=3, vocabulary=49152), 2, 8, 64, 64, "float32"
    ),
    "Qwen2.5's, in bfloat16": Work(
        Shape(hidden=896, intermediate=4864, layers=6, heads=14, kv_heads=2, vocabulary=20000), 2, 8, 128, 128, "bfloat16"
    ),
    "no shared keys": Work(
        Shape(hidden=1024, intermediate=2816, layers=8, heads=16, kv_heads=16, vocabulary=32000), 4, 4, 200, 100, "bfloat16"
    ),
    "a large vocabulary, short completions": Work(
        Shape(hidden=512, intermediate=1024, layers=4, heads=8, kv_heads=2, vocabulary=60000), 4, 16, 24, 48, "float32"
    ),
    "a long prompt": Work(
        Shape(hidden=768, intermediate=2048, layers=10, heads=12, kv_heads=4, vocabulary=16000), 1, 16, 512, 64, "float32"
    ),
}
ADAPTED = {
    "an adapter of all layers": replace(WORKS["SmolLM2's proportions"], rank=16),
    "an adapter in bfloat16": replace(WORKS["Qwen2.5's, in bfloat16"], rank=32),
    "an adapter of queries and values in bfloat16": replace(WORKS["no shared keys"], rank=8, targets=("q_proj", "v_proj")),
    "an adapter of high rank, after a long prompt": replace(WORKS["a long prompt"], rank=128),
}
"""The same with adapters."""


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Bytes of a phase beside what was there before it: estimated and at most allocated."""

    update: tuple[int, int]
    recomputed: tuple[int, int]
    """Of an update with gradient checkpointing."""
    logps: tuple[int, int]
    rollout: tuple[int, int]


def peaks_of(
    work: Work, device: torch.device, *, padded: bool, packed: bool, peak: Callable[[Callable[[], object]], int]
) -> Peaks:
    """Run each phase of a work and return its peaks.

    Args:
        work: the model and the completions.
        device: on which it runs.
        padded: whether completions are padded in a pass.
        packed: whether completions are sampled with packed weights.
        peak: returns the most bytes that a call had at a time, beside those that were there before.
    """
    model, shape = work.model()
    config, completions = work.config(), work.completions(device)
    plain = Policy(
        model=model.to(device),
        tokenizer=words(work.shape.vocabulary),
        eos_token_ids=(work.shape.vocabulary - 1,),
        dtype=work.dtype,
        path=SamplingPath(packed=packed, lean=True, padded=padded),
    )
    lora = config.model.lora
    policy = plain if lora is None else with_adapter(plain, lora, seed=0, source="random weights")

    def updated(chosen: Policy) -> int:
        most = peak(lambda: chosen.forward(completions, list(range(completions.num_rows))).logps.sum().backward())
        model.zero_grad()
        return most

    usual, again = updated(policy), updated(replace(policy, recomputed=True))
    checkpointing = config.training.model_copy(update={"gradient_checkpointing": True})
    with_it = config.model_copy(update={"training": checkpointing})
    measured = peak(lambda: policy.logps(completions))
    asked = SamplingSettings(group_size=work.group, max_completion_tokens=work.completion_tokens)
    sampled = peak(lambda: policy.sample(completions.prompts, asked, RandomKey(seed=0, stream=Stream.TRAIN, step=1)))
    return Peaks(
        update=(update_bytes(config, shape, padded=padded), usual),
        recomputed=(update_bytes(with_it, shape, padded=padded), again),
        logps=(logps_bytes(config, shape, padded=padded), measured),
        rollout=(rollout_bytes(config, shape, packed=packed, shared=device.type == "cpu"), sampled),
    )


def peak_on_cpu(function: Callable[[], object]) -> int:
    """Return the most bytes of tensors that a call had at a time on the CPU, as torch's profiler sees it."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function()
    live = most = 0
    for _, size in sorted(_allocations(profiled.profiler.kineto_results.experimental_event_tree())):
        live += size
        most = max(most, live)
    return most


def _allocations(events: Any) -> Iterator[tuple[int, int]]:
    for event in events:
        if hasattr(event.extra_fields, "alloc_size"):
            yield event.start_time_ns, event.extra_fields.alloc_size
        yield from _allocations(event.children)


def peak_on_cuda(function: Callable[[], object]) -> int:
    """Return the most bytes of tensors that a call had at a time on the current GPU."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
