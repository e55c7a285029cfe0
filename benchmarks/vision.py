"""Seconds of forward and backward with images: the prefix of a group shared, and whole rows as others run them.

    make bench-images                       # half a minute

Whole rows are transformers' own pass over every completion behind a prompt of its own, with its image. Both take turns; their
log-probabilities are compared first.
"""

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from grpo_core.config import apply_overrides, validate_config
from grpo_core.generation.sampler import SampledCompletions
from grpo_core.machine.hardware import avoid_broken_kernels
from grpo_core.machine.images import ImageFolder
from grpo_core.policy.loading import open_policy
from grpo_core.policy.policy import Policy
from grpo_core.policy.vision import joined
from grpo_core.types import Prompt
from tests.support.vision_models import picture, question, write_vision_model

KINDS = ("llava", "idefics3", "qwen2_5_vl")
PROMPTS, GROUP, TOKENS, TEXT = 4, 8, 32, 70
"""Prompts, completions of each, tokens of a completion, and characters of the question, each a token."""
TIMES = 8
"""Wider than the tiny models of the tests: 256 instead of 32."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vision", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args(arguments)
    avoid_broken_kernels()
    torch.set_num_threads(1)
    print("| model | prompt tokens | of its image | shared, s | whole rows, s | times faster |\n|---|---|---|---|---|---|")
    for kind in options.kinds:
        with tempfile.TemporaryDirectory() as folder:
            print(measured(kind, Path(folder), options.rounds, options.device), flush=True)


def measured(kind: str, folder: Path, rounds: int, device: str = "cpu") -> str:
    """Return the row of a kind of model."""
    policy, completions = opened(kind, folder, device)
    passes: dict[str, Callable[[], Tensor]] = {
        "shared": lambda: policy.forward(completions, range(completions.num_rows)).logps,
        "whole": lambda: whole_rows(policy, completions),
    }
    values = [compute() for compute in passes.values()]
    if not torch.allclose(*values, rtol=0, atol=1e-4):
        raise RuntimeError(f"{kind}: log-probabilities differ by {float((values[0] - values[1]).abs().max()):.2g}")
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(rounds):
        for name, compute in passes.items():
            policy.model.zero_grad()
            began = time.perf_counter()
            compute().sum().backward()  # type: ignore[no-untyped-call]
            if device == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - began)
    shared, whole = (statistics.median(each) for each in seconds.values())
    assert policy.images is not None
    ids = completions.prompts[0].token_ids
    of_image = ids.count(policy.images.processor.placeholder_id)
    return f"| {kind} | {len(ids)} | {of_image} | {shared:.3f} | {whole:.3f} | {whole / shared:.1f} |"


def opened(kind: str, folder: Path, device: str = "cpu") -> tuple[Policy, SampledCompletions]:
    """Return a policy and completions of prompts that have an image each, all of one size."""
    model, images = write_vision_model(folder / "model", kind, times=TIMES), ImageFolder(folder / "images", 10**6)
    training = {"training.threads": 1, "training.device": device}
    config = validate_config(apply_overrides({}, {"model.source": str(model), **training}))
    policy = open_policy(model, config, images=images.path)
    assert policy.images is not None
    prompts = []
    for number in range(PROMPTS):
        image = picture(3 * number + 1)
        with io.BytesIO() as file:
            image.save(file, "PNG")
            digest = images.add(file.getvalue())
        found = policy.images.processor.encode(
            question(kind, 1, "what is it?".ljust(TEXT, ".")), [image], add_special_tokens=True
        )
        prompts.append(Prompt(id=number, content="", text="", token_ids=found.token_ids, columns={}, images=(digest,)))
    rows = PROMPTS * GROUP
    completions = SampledCompletions(
        prompts=tuple(prompts),
        group_size=GROUP,
        completion_ids=torch.randint(4, 100, (rows, TOKENS), generator=torch.Generator().manual_seed(1)).to(device),
        completion_mask=torch.ones(rows, TOKENS, dtype=torch.bool, device=device),
        sampling_per_token_logps=torch.zeros(rows, TOKENS, device=device),
    )
    return policy, completions


def whole_rows(policy: Policy, completions: SampledCompletions) -> Tensor:
    """Return the log-probabilities of transformers' pass over all rows."""
    assert policy.images is not None
    inputs = [prompt.model_input for prompt in completions.prompts for _ in range(completions.group_size)]
    ids = torch.cat(
        [torch.tensor([one.token_ids for one in inputs]).to(completions.completion_ids), completions.completion_ids], dim=1
    )
    types = (ids == policy.images.processor.placeholder_id).long()
    more = {"mm_token_type_ids": types} if hasattr(policy.model.base_model, "get_rope_index") else {}
    tensors = {name: one.to(ids.device) for name, one in joined([policy.images.tensors(one) for one in inputs]).items()}
    logits = policy.model(input_ids=ids, use_cache=False, logits_to_keep=TOKENS + 1, **tensors, **more).logits[:, :-1]
    return torch.log_softmax(logits, dim=-1).gather(2, completions.completion_ids.unsqueeze(2)).squeeze(2)


if __name__ == "__main__":
    main()
