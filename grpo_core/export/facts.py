"""What a card says of a policy, read from its run's journal: how far it has drifted, and how it was evaluated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.evaluation.results import HELD_OUT, HELD_OUT_SAMPLE, evaluations_after
from grpo_core.evaluation.statistics import Estimate
from grpo_core.metrics import LAST_STEPS
from grpo_core.run.journal import Record

KL = (
    ("kl/ref/drift", "kl/ref/drift_se", "the reference", "k1"),
    ("kl/init/drift", "kl/init/drift_se", "the initial policy", "k1"),
    ("kl/probe/full", "kl/probe/se", "the reference", "exact, on the probe prompts"),
    ("kl/probe/full_init", "kl/probe/se_init", "the initial policy", "exact, on the probe prompts"),
)
"""(figure, its standard error, from what, how measured); a step's drift is exact where the step has the sum."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One KL, in nats a token."""

    key: str
    what: str
    """To which policy, and how measured. Of a reference: after which step it was synchronised, as there may be several."""
    value: float
    error: float | None
    """Its standard error."""
    policy_step: int
    """The policy that was measured: the one after this step."""

    def __str__(self) -> str:
        """Return `0.096 ± 0.01, policy after step 8, to the reference synchronised after step 4, k1`."""
        error = "" if self.error is None else f" ± {self.error:.2g}"
        return f"{self.value:.4g}{error}, policy after step {self.policy_step}, {self.what}"


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One figure of one evaluation set, of the base and of the policy."""

    key: str
    set_name: str
    num_prompts: int | None
    base: str | None
    """With its 95 % interval where that is known; None = not evaluated."""
    policy: str | None


def drift_of(history: Sequence[Record], step: int) -> list[Drift]:
    """Return the newest measurement of each KL up to the policy after a step.

    A step is measured before its update, so that of step k is of the policy after step k - 1: for a policy that the training
    has gone on from, the next step has measured it.

    Args:
        history: of the run.
        step: after which the policy was saved.
    """
    steps = [record for record in history if record.kind == "step" and record.step <= step + 1]
    found = []
    for key, error, origin, how in KL:
        record = next((record for record in reversed(steps) if key in record.metrics), None)
        if record is not None:
            values = record.metrics
            since = max((sync.step for sync in history if sync.kind == "ref_sync" and sync.step < record.step), default=None)
            synced = f" synchronised after step {since}" if origin == "the reference" and since is not None else ""
            measured = "exact" if key.replace("/drift", "/full") in values and how == "k1" else how
            what, known = f"to {origin}{synced}, {measured}", values.get(error, math.nan)
            size = None if math.isnan(known) else known  # of one prompt none is known
            found.append(Drift(key=key, what=what, value=values[key], error=size, policy_step=record.step - 1))
    return found


def mean_kl(history: Sequence[Record], step: int) -> tuple[int, int, float] | None:
    """Return (first step, last step, mean of kl/ref/drift) over the last steps before a policy; None where there are none."""
    records = [r for r in history if r.kind == "step" and r.step <= step and "kl/ref/drift" in r.metrics][-LAST_STEPS:]
    if not records:
        return None
    return records[0].step, records[-1].step, sum(record.metrics["kl/ref/drift"] for record in records) / len(records)


def evaluations_of(history: Sequence[Record], step: int) -> list[Evaluated]:
    """Return the figures of a policy's evaluations beside those of the base on the same set; only of this very step."""
    base, policy = (evaluations_after(history, wanted) for wanted in (0, step))
    found = []
    for name in dict.fromkeys((HELD_OUT, HELD_OUT_SAMPLE, *policy, *base)):
        records = [evaluations[name] for evaluations in (policy, base) if name in evaluations]
        count = next((record.data.get("num_prompts") for record in records), None)
        found += [
            Evaluated(
                key=key,
                set_name=name,
                num_prompts=count if isinstance(count, int) else None,
                base=_shown(base.get(name), key),
                policy=_shown(policy.get(name), key),
            )
            for key in dict.fromkeys(key for record in records for key in record.metrics)
        ]
    return found


def _shown(record: Record | None, key: str) -> str | None:
    if record is None or key not in record.metrics:
        return None
    facts: Any = record.data.get("estimates")
    return str(Estimate(**facts[key])) if isinstance(facts, dict) and key in facts else f"{record.metrics[key]:.3f}"
