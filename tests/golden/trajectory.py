"""Ten steps of a tiny model in float64 on scripted rollouts: the same figures on every machine, to many digits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal
from grpo_core.training.ending import StopRequest
from grpo_core.training.session import FRESH, Session, open_session
from grpo_core.training.step import run_step
from tests.support.scripted import ScriptedSampler

STEPS = 10
END = 1
FIGURES = (
    *("loss/total", "loss/policy", "loss/kl", "optim/grad_norm", "optim/lr"),
    *("kl/ref/k1", "kl/ref/k1_se", "kl/ref/k2", "kl/ref/k3", "kl/ref/full", "kl/init/drift", "kl/init/k3", "policy/entropy"),
    *("policy/ratio_mean", "policy/ratio_max", "policy/clip_frac/low", "policy/clip_frac/high", "policy/ess"),
    *("advantage/mean", "advantage/max", "ref/lag", "ref/param_distance", "ref/kl_before_sync", "ref/kl_after_sync"),
)
BASE = {
    "rewards": [{"fn": "tests.golden.trajectory:letters"}],
    "rollout.num_prompts_per_step": 3,
    "rollout.group_size": 4,
    "rollout.max_completion_tokens": 8,
    "optimizer.lr": 1e-3,
    "training.steps": STEPS,
    "evaluation.samples": 0,
    "reference.kl_full_every": 10,
}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "DeepSeekMath, hard copies": {"loss.kl_correction": "none", "reference.sync_steps": 4},
    "several updates, EMA, corrected KL": {
        "loss.epochs_per_rollout": 2,
        "loss.minibatches": 2,
        "loss.kl_correction": "importance",
        "loss.aggregation": "token-mean",
        "loss.clip_eps": 0.02,
        "loss.clip_eps_high": 0.03,
        "reference.sync_steps": 3,
        "reference.mixup_alpha": 0.6,
        "optimizer.lr": 5e-3,
        "optimizer.schedule": "cosine",
        "optimizer.warmup_steps": 4,
    },
    "sequence ratio, exact KL, leave-one-out": {
        "loss.epochs_per_rollout": 2,
        "loss.ratio": "sequence",
        "loss.clip_eps": 0.005,
        "loss.kl_estimator": "full",
        "loss.aggregation": "seq-mean-token-sum-norm",
        "advantage.baseline": "leave_one_out",
        "advantage.scale": "batch_std",
        "reference.sync_steps": None,
        "optimizer.lr": 5e-3,
    },
    "KL in the reward, whitened, clipped twice": {
        "loss.epochs_per_rollout": 3,
        "loss.kl_placement": "reward",
        "loss.kl_estimator": "k1",
        "loss.dual_clip": 1.2,
        "loss.clip_eps": 0.01,
        "loss.aggregation": "seq-mean-token-sum",
        "advantage.whiten_advantages": True,
        "advantage.advantage_clip": 1.0,
        "reference.sync_steps": 5,
        "optimizer.lr": 5e-3,
    },
}
MICROBATCHES = {"all rows in one": 100_000, "a prompt's group in one": 200, "each row alone": 1}
"""`training.microbatch_tokens`, one for each way in which rows, groups and passes can lie to each other."""


def script(step: int, prompt_id: int, index: int) -> list[int]:
    """Return one to eight tokens; every fourth completion is truncated."""
    length = 1 + (3 * prompt_id + 5 * index + step) % 7
    tokens = [5 + (prompt_id * 7 + index * 11 + place * 3 + step) % 70 for place in range(length)]
    return (tokens * 8)[:8] if index % 4 == 3 else [*tokens, END]


def letters(prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
    """Reward a completion by its letters; completions of one group differ."""
    return [float(sum(map(ord, completion[0]["content"])) % 11) for completion in completions]


def open_scripted(run_dir: RunDir, journal: Journal) -> Session:
    """Open a session in float64 whose completions follow the script."""
    session = open_session(run_dir, journal, StopRequest(run_dir.stop_file, None))
    session.policy.model.double()
    session.reference.current.model.double()
    return replace(session, sampler=ScriptedSampler(script, [END]))


def trajectory(make_run: Callable[..., RunDir], overrides: dict[str, Any], name: str) -> list[dict[str, float]]:
    """Return the figures of each step of a run, and check that its advantages are not all 0."""
    run_dir = make_run({**BASE, **overrides}, name)
    journal, state, figures = Journal(run_dir.journal_file), FRESH, []
    session = open_scripted(run_dir, journal)
    for _ in range(STEPS):
        result = run_step(session, state)
        state = result.state
        assert result.metrics["group/zero_std_frac"] == 0
        assert result.metrics["advantage/max"] > 0
        figures.append({key: result.metrics[key] for key in FIGURES if key in result.metrics})
    journal.close()
    return figures
