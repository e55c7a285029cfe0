"""Full models beside a training with an adapter: base and adapter merged, by plain transformers, in copies of their own."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from grpo_core.policy.checkpoint import Trainable
from grpo_core.policy.policy import Policy
from grpo_core.policy.reference import Reference
from grpo_core.training.session import Session
from grpo_core.training.update import Updater, build_optimizer

A, B = ".lora_A.weight", ".lora_B.weight"


class MergedModels:
    """Policy, reference and initial policy as three models that know nothing of adapters."""

    def __init__(self, folder: Path, policy: Policy, scale: float) -> None:
        dtype = next(policy.model.parameters()).dtype
        self.policy, self.reference, self.initial = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval() for _ in range(3)
        )
        self._base = {name: weight.clone() for name, weight in self.policy.state_dict().items()}
        self._scale = scale
        self.update(policy)
        for model in (self.reference, self.initial):
            model.load_state_dict(self.policy.state_dict())

    def update(self, policy: Policy) -> None:
        """Merge the adapter as it is now into the policy's model."""
        self.policy.load_state_dict(self._base | merged(self._base, policy.weights(), self._scale))

    @torch.no_grad()
    def sync(self, alpha: float) -> None:
        """Average all weights of the reference's model."""
        for weight, target in zip(self.reference.parameters(), self.policy.parameters(), strict=True):
            weight.copy_(alpha * target + (1 - alpha) * weight)

    def delta(self, model: Any) -> dict[str, Tensor]:
        """Return what a model's weights have that the base's have not, where an adapter can be."""
        return {name: weight - self._base[name] for name, weight in model.state_dict().items() if name.endswith("_proj.weight")}


def merged(base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return the weights that an adapter changes, changed."""
    layers = [name.removesuffix(A) for name in adapter if name.endswith(A)]
    return {f"{layer}.weight": base[f"{layer}.weight"] + scale * adapter[layer + B] @ adapter[layer + A] for layer in layers}


@torch.no_grad()
def plain_logps(model: Any, rollouts: Any, temperature: float) -> Tensor:
    """Return the log-probability of every completion token, one row at a time, by transformers alone."""
    found = torch.zeros(rollouts.completion_mask.shape, dtype=next(model.parameters()).dtype)
    for row, (ids, mask) in enumerate(zip(rollouts.completion_ids, rollouts.completion_mask, strict=True)):
        prompt = torch.tensor(rollouts.prompts[row // rollouts.group_size].token_ids)
        kept = ids[mask]
        logits = model(input_ids=torch.cat([prompt, kept]).unsqueeze(0)).logits[0, len(prompt) - 1 : -1]
        found[row, : len(kept)] = torch.log_softmax(logits / temperature, dim=-1).gather(1, kept.unsqueeze(1)).squeeze(1)
    return found


def in_double(session: Session) -> Session:
    """Return a session that computes in double precision."""
    policy = session.policy
    policy.model.double()
    optimizer, schedule = build_optimizer(policy.model, session.config.optimizer, session.config.training.steps)
    trainable = Trainable(policy=policy, reference=Reference(policy), optimizer=optimizer, schedule=schedule)
    return replace(
        session,
        trainable=trainable,
        sampler=policy,
        updater=Updater(trainable=trainable, config=session.config),
        evaluator=replace(session.evaluator, policy=policy),
    )
