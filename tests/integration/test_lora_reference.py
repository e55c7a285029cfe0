"""A training with an adapter measures what one with three full models would: policy, reference, initial policy."""

import math
from dataclasses import dataclass

import pytest
import torch

from grpo_core.policy.lora.delta import LowRank, adapted_layers, delta_of
from grpo_core.policy.sources.find import resolve_model
from grpo_core.run.journal import Journal
from grpo_core.training.ending import StopRequest
from grpo_core.training.session import FRESH, open_session
from grpo_core.training.step import run_step
from tests.merged_models import MergedModels, in_double, plain_logps

LORA = {"model.lora.rank": 3, "optimizer.lr": 0.01, "evaluation.every_steps": None, "rollout.num_prompts_per_step": 2}


@dataclass
class Worst:
    """Largest differences of log-probabilities so far, and of their means over the tokens of a step."""

    largest: float = 0.0
    mean: float = 0.0

    def take(self, found, expected, mask):
        difference = (found - expected).abs()[mask]
        self.largest, self.mean = max(self.largest, float(difference.max())), max(self.mean, float(difference.mean()))


def run(run_dir, steps, *, alpha, double=True, at_sync=lambda *_: None):
    """Run steps beside merged models; return (largest differences, figures of each step, models, session)."""
    journal = Journal(run_dir.journal_file)
    session = open_session(run_dir, journal, StopRequest(run_dir.stop_file, None))
    session = in_double(session) if double else session
    config, state, worst, steps_figures = session.config, FRESH, Worst(), []
    models = MergedModels(resolve_model(config.model.source), session.policy, config.model.lora.scale)
    for step in range(1, steps + 1):
        before = {name: delta_of(layer) for name, layer in adapted_layers(session.reference.current.model)}
        result = run_step(session, state)
        state, rollouts = result.state, result.batch.rollouts
        steps_figures.append(result.metrics)
        models.update(session.policy)
        if result.sync is not None:
            models.sync(alpha)
            at_sync(step, result, session, before)
        of_reference, of_initial = session.reference.current, session.reference.initial
        pairs = ((session.policy, models.policy), (of_reference, models.reference), (of_initial, models.initial))
        for ours, full in pairs:
            worst.take(ours.logps(rollouts), plain_logps(full, rollouts, config.rollout.temperature), rollouts.completion_mask)
    session.close()
    journal.close()
    return worst, steps_figures, models, session


@pytest.mark.parametrize(("alpha", "every"), [(1.0, 3), (0.4, 3)], ids=["hard copies", "moving average"])
def test_every_logp_is_that_of_merged_models(tiny_run, alpha, every):
    """15 steps, 5 syncs, in double precision."""
    settings = {"reference.sync_steps": every, "reference.mixup_alpha": alpha, "training.steps": 15}
    settings |= {} if alpha == 1 else {"model.lora.reference_rank": 15}  # what 5 syncs of rank 3 can need
    worst, figures, _, session = run(tiny_run(LORA | settings | {"reference.kl_full_every": 5}), 15, alpha=alpha)
    assert session.reference.sync_count == 5
    assert worst.largest < 1e-9
    assert max(step["kl/init/drift"] for step in figures) > 1e-3, "nothing has moved"
    if alpha == 1:
        after = [figures[step]["kl/ref/drift"] for step in range(every, 15, every)]  # the step after each sync
        assert max(after) < 1e-6
        assert figures[-1]["kl/init/drift"] > 10 * max(after)


def test_past_the_bound_on_rank_the_error_is_the_one_that_is_stated(tiny_run):
    """20 syncs of an average whose rank may be 6; each sync's error is compared with a decomposition of the full matrices."""
    alpha, bound = 0.3, 6
    dropped = []

    def check(step, result, session, before):
        squared = 0.0
        for (name, layer), (_, trained) in zip(
            adapted_layers(session.reference.current.model), adapted_layers(session.policy.model), strict=True
        ):
            exact = alpha * delta_of(trained).dense() + (1 - alpha) * before[name].dense()
            delta = delta_of(layer)
            assert isinstance(delta, LowRank)
            assert len(delta.a) <= bound
            squared += float(torch.linalg.svdvals(exact)[bound:].square().sum())
        assert result.sync.compression_error == pytest.approx(math.sqrt(squared), rel=1e-6, abs=1e-12)
        dropped.append(result.sync.compression_error)

    settings = {
        "reference.sync_steps": 1,
        "reference.mixup_alpha": alpha,
        "training.steps": 20,
        "model.lora.reference_rank": bound,
    }
    _, figures, models, session = run(tiny_run(LORA | settings), 20, alpha=alpha, at_sync=check)
    assert len(dropped) == 20
    assert dropped[-1] > 0
    exact, kept = models.delta(models.reference), dict(adapted_layers(session.reference.current.model))
    squared = sum(float((delta_of(layer).dense() - exact[f"{name}.weight"]).square().sum()) for name, layer in kept.items())
    assert 0 < math.sqrt(squared) <= figures[-1]["ref/compression_bound"] * (1 + 1e-9)
    norm = math.sqrt(sum(float(delta.square().sum()) for delta in exact.values()))
    assert figures[-1]["ref/compression_bound"] < 0.5 * norm, "a bound that says nothing"
