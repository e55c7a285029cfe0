"""The registry of metric keys: what each means, how it is computed, and what is healthy.

A key that is not here cannot be journalled. `<name>` in a key stands for one part (a reward function, an evaluation set).
The table in METRICS.md is generated from this file (`make docs`) and a test holds the two together.

Adding one: an entry below, the figure in `training/measure.py` (or where the event happens), a hand-computed case in its test.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

When = Literal[
    "step", "exact", "multi_update", "sync", "adapter_average", "probe", "filter", "control", "eval", "server", "gpu", "noise"
]
_KL, _AS_FULL = "sum_v pi (log pi - log pi_0)", "as kl/probe/full_init"

LAST_STEPS = 10
"""Steps at the end of a run over which a figure of every step is averaged where one figure stands for the run."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One key."""

    key: str
    meaning: str
    formula: str
    unit: str
    reduction: str
    """How one step's many values become one number."""
    healthy: str
    """Its healthy range, or `none: ` and why there is none."""
    deterministic: bool = True
    """Whether a repeated run must give the same figure; times and memory need not."""
    alarm: float | None = None
    """Beyond it the figure is no longer healthy: the bound of a monitor's rule about it that names none."""
    when: When = "step"
    """`step`: every step; the others only where it happens: a sum over the vocabulary (`reference.kl_full_every`), several
    updates, a sync, an average of adapters, a probe, a filter, a steered beta, an evaluation, rollouts from a server, a GPU,
    the gradients of single prompts (`training.noise_scale_every`)."""

    @property
    def is_probe(self) -> bool:
        """Whether it measures the policy as it is at one step, on a fixed set: the last one counts, a mean describes none."""
        return self.when == "probe"

    @property
    def is_error(self) -> bool:
        """Whether it is a standard error over prompts: NaN where a step has one prompt."""
        return self.reduction == _CLUSTERS


def _m(  # noqa: PLR0917  (the rows of a table: positions are its columns)
    key: str,
    meaning: str,
    formula: str,
    unit: str,
    reduction: str,
    healthy: str,
    when: When = "step",
    alarm: float | None = None,
) -> Metric:
    row = {"key": key, "meaning": meaning, "formula": formula, "unit": unit, "reduction": reduction, "healthy": healthy}
    # What a server computes depends on which requests it computes together.
    return Metric(**row, when=when, alarm=alarm, deterministic=when != "server")


def _drift(name: str, whom: str, healthy: str) -> tuple[Metric, ...]:
    """Return what is measured of the drift from one other policy, r being its probability over the policy's."""
    key, over_prompts = f"kl/{name}", "sqrt(P/(P-1) sum_p (S_p - n_p k)^2) / N"
    tail = "tail: spikes where the policy gives a token almost no probability that the other likes"
    return (
        _m(f"{key}/drift", f"KL to {whom}: {key}/full where the step measures it, else {key}/k1", "-", "nats/token", _SAMPLED,
           healthy, alarm=1.0),
        _m(f"{key}/drift_se", f"standard error of {key}/drift", "of the estimator that it is", "nats/token", _CLUSTERS,
           f"well below {key}/drift"),
        _m(f"{key}/seq", f"{key}/drift per completion", "sum_t k", "nats/completion", _ROWS, _BY_LENGTH),
        _m(f"{key}/full", f"exact KL to {whom} on the step's completions", "sum_v pi (log pi - log pi_other)", "nats/token",
           _SAMPLED, f"as {key}/drift", when="exact", alarm=1.0),
        _m(f"{key}/full_se", f"standard error of {key}/full", over_prompts, "nats/token", _CLUSTERS, f"well below {key}/full",
           when="exact"),
        _m(f"{key}/k1", f"KL to {whom}, estimator k1: unbiased, may be negative", "-log r", "nats/token", _SAMPLED,
           f"as {key}/drift", alarm=1.0),
        _m(f"{key}/k1_se", f"standard error of {key}/k1, prompts as clusters", over_prompts, "nats/token", _CLUSTERS,
           f"well below {key}/k1"),
        _m(f"{key}/k2", f"KL to {whom}, estimator k2", "(log r)^2 / 2", "nats/token", _SAMPLED, f"as {key}/drift"),
        _m(f"{key}/k3", f"KL to {whom}, estimator k3", "r - 1 - log r", "nats/token", _SAMPLED, tail, alarm=1.0),
        _m(f"{key}/max", "largest k3 of one token", "max_t k3", "nats", "max over sampled tokens", tail),
        _m(f"{key}/p95", "95th percentile of k3 over tokens", "quantile_0.95(k3)", "nats", "quantile over sampled tokens",
           f"a few times {key}/drift"),
    )  # fmt: skip


def _probed(name: str, meaning: str, formula: str = _KL, healthy: str = _AS_FULL, unit: str = "nats/token") -> Metric:
    return _m(f"kl/probe/{name}", meaning, formula, unit, "mean over completion tokens", healthy, when="probe")


def _time(key: str, meaning: str, unit: str = "s", reduction: str = "sum over the step", when: When = "step") -> Metric:
    return replace(_m(key, meaning, "-", unit, reduction, _BY_MACHINE, when), deterministic=False)


_TOKENS = "mean over loss tokens"
_SAMPLED = "mean over sampled tokens"
_CLUSTERS = "over prompts"
_ROWS = "mean over completions"
_GROUPS = "mean over groups"
_SHARE = "share of groups"
_BY_LENGTH = "none: in proportion to the length of completions"
_BY_REWARD = "none: in the units of the reward function"
_BY_MACHINE = "none: depends on the machine and on lengths"
_COUNTER = "none: shows where the run is"

# A table, formatted by hand: an entry takes one or two lines.
# fmt: off
REGISTRY: tuple[Metric, ...] = (
    # KL: measured with the policy that made the rollouts, before its update, whatever the loss uses.
    *_drift("ref", "the current reference", "rises slowly, below 0.1 to 1"),
    *_drift("init", "the initial policy", "rises slowly, below 1; no sync resets it"),
    _m("kl/probe/full", "exact KL to the current reference on the fixed probe set", "sum_v pi (log pi - log pi_ref)",
       "nats/token", _SAMPLED, "as kl/ref/drift", when="probe", alarm=1.0),
    _m("kl/probe/full_init", "exact KL to the initial policy on the fixed probe set", "sum_v pi (log pi - log pi_0)",
       "nats/token", _SAMPLED, "as kl/init/drift", when="probe", alarm=1.0),
    _m("kl/probe/se", "standard error of kl/probe/full", "as kl/ref/k1_se", "nats/token", _CLUSTERS,
       "well below kl/probe/full", when="probe"),
    _m("kl/probe/se_init", "standard error of kl/probe/full_init", "as kl/ref/k1_se", "nats/token", _CLUSTERS,
       "well below kl/probe/full_init", when="probe"),
    _m("kl/probe/forward_init", "forward KL of completions from the initial policy, on its own of the probe prompts: predicts "
       "forgetting", "sum_t sum_v pi_0 (log pi_0 - log pi)", "nats/completion", _ROWS, _BY_LENGTH, when="probe"),
    _m("kl/probe/forward_init_se", "standard error of kl/probe/forward_init", "std / sqrt(P)", "nats/completion",
       "over prompts", "well below kl/probe/forward_init", when="probe"),
    _probed("forward_own_init", "forward KL to the initial policy on the policy's own completions",
            "sum_v pi_0 (log pi_0 - log pi)", "as kl/probe/full_init; far above it: something was lost"),
    _probed("tv_init", "total variation to the initial policy: the probability that has moved", "1/2 sum_v |pi - pi_0|",
            "at most sqrt(kl/probe/full_init / 2)", "0..1"),
    _probed("renyi_half_init", "Renyi divergence of order 1/2 to the initial policy", "-2 log sum_v sqrt(pi pi_0)",
            "at most kl/probe/full_init"),
    _probed("top1_changed_init", "positions whose most likely token is another one than the initial policy's",
            "argmax pi != argmax pi_0", "rises slowly", "0..1"),
    _probed("correct_init", "kl/probe/full_init over the completions that the verifier accepts; absent where there is none"),
    _probed("wrong_init", "the same over those that it does not accept"),
    _probed("init_at_<position>", "the same over the positions 0, 1, 2-3, 4-7, 8-15, ..., named by the first of each"),
    _m("kl/probe/top_decile_share_init", "share of all nats to the initial policy that the tenth of prompts with most has",
       "sum of the largest P/10 / sum", "0..1", "ratio of sums", "near 0.1: no prompt stands out", when="probe"),
    _m("kl/old/k3", "KL between the policy that made the rollouts and the policy during the updates on them",
       "rho - 1 - log rho", "nats/token", "mean over loss tokens and optimizer steps", "below 0.05", when="multi_update",
       alarm=0.05),
    _m("kl/sampler/k3", "mismatch between the sampler's and the trainer's log-probabilities", "r - 1 - log r", "nats/token",
       _SAMPLED, "below 1e-3; embedded sampler: rounding", alarm=0.01),
    # Rollouts from a server: what the probe of its weights has shown
    _m("sampler/probe/difference", "largest difference between the server's and the trainer's log-probability of a fixed token",
       "max |lp_s - lp|", "nats", "max over the probe's tokens", "fp32: below 1e-4; bf16: below 1", when="server"),
    _m("sampler/probe/moved", "change of the trainer's since the weights that were confirmed last", "rms(lp - lp')", "nats",
       "rms over the probe's tokens", "none: grows with the learning rate", when="server"),
    _m("sampler/probe/missed", "how far the server's change is from it", "rms((lp_s - lp_s') - (lp - lp'))", "nats",
       "rms over the probe's tokens", "fp32: below 5e-5; bf16: well below sampler/probe/moved", when="server"),
    _m("sampler/probe/followed", "how much of the trainer's change the server's has followed: 0 = it has the old weights",
       "slope of lp_s - lp_s' over lp - lp'", "-", "least squares over the probe's tokens", "1", when="server"),
    _m("sampler/probe/conclusive", "1 where the change stands out of the rounding; 0 = the digests alone speak for the weights",
       "-", "0/1", "last", "fp32: 1", when="server"),
    # Loss
    _m("loss/total", "what was minimised", "policy + beta kl", "-", "aggregation of the config, mean over optimizer steps",
       "none: a surrogate, near 0 at mu=1 whatever is learned"),
    _m("loss/policy", "clipped surrogate", "see algorithm/loss.py eq. (1)", "-", "aggregation of the config", "near 0 at mu=1"),
    _m("loss/kl", "KL estimator of the loss, before beta", "see algorithm/kl.py", "nats", "aggregation of the config",
       "as the estimator of kl/ref that it is"),
    _m("loss/beta", "beta of the step under loss.beta_control", "log beta += gain clip(d / d* - 1, -0.2, 0.2)", "-", "last",
       "inside its bounds: at one of them the drift is not steered", when="control"),
    # Rewards and groups
    _m("reward/mean", "weighted total reward", "sum_f w_f r_f", "reward", _ROWS, "rises"),
    _m("reward/std", "spread of the total over the whole batch", "Bessel std", "reward", "over completions", "above 0"),
    _m("reward/<fn>/mean", "one reward function, before its weight", "r_f", "reward", _ROWS, "rises, or stays at its best"),
    _m("reward/<fn>/std", "its spread over the batch", "Bessel std", "reward", "over completions", _BY_REWARD),
    _m("reward/<fn>/unscorable_frac", "completions that it could not score", "share of None", "0..1", _ROWS, "0"),
    _m("reward/<fn>/timeout_frac", "completions that exceeded its bound in CPU time, or whose gold answer did",
       "share, as journalled", "0..1", _ROWS, "0"),
    _m("group/reward_std/mean", "spread of the total inside a group", "Bessel std", "reward", _GROUPS, "above 0"),
    _m("group/reward_std/min", "smallest spread inside a group", "Bessel std", "reward", "min over groups", _BY_REWARD),
    _m("group/reward_std/max", "largest spread inside a group", "Bessel std", "reward", "max over groups", "above 0"),
    _m("group/zero_std_frac", "groups that teach nothing: all rewards equal after their shaping, penalties included",
       "A = 0 throughout", "0..1", _SHARE, "below 0.5", alarm=0.9),
    _m("group/all_correct_frac", "groups where the verifier accepts every completion", "-", "0..1", _SHARE,
       "below 0.5"),
    _m("group/all_wrong_frac", "groups where the verifier accepts none", "-", "0..1", _SHARE, "falls"),
    _m("group/best_mean", "best total of a group", "max_g r", "reward", _GROUPS, "above reward/mean"),
    _m("group/effective_count", "groups that teach: their advantages are not all 0", "-", "groups", "sum over groups",
       "above half of the groups"),
    _m("advantage/mean", "mean advantage", "A", "-", _ROWS, "0 up to rounding"),
    _m("advantage/std", "spread of the advantages", "Bessel std", "-", "over completions", "about sqrt((G-1)/G)"),
    _m("advantage/max", "largest absolute advantage", "max |A|", "-", "max over completions", "at most (G-1)/sqrt(G)"),
    # Policy
    _m("policy/entropy", "entropy of the next-token distribution", "-sum_v p log p", "nats", _SAMPLED, "falls, not to 0",
       alarm=0.05),
    _m("policy/ratio_mean", "importance ratio pi/pi_old", "exp(lp - lp_old)", "-", f"{_TOKENS}, mean over optimizer steps",
       "1"),
    _m("policy/ratio_max", "largest ratio", "max rho", "-", "max over loss tokens and optimizer steps", "below 10"),
    _m("policy/ess", "effective sample size of the completions as draws of the policy that is updated, w = prod_t rho",
       "(sum w)^2 / (n sum w^2)", "0..1", "min over optimizer steps", "above 0.5", when="multi_update"),
    _m("policy/stale_frac", "completions that it makes less than half or more than twice as likely", "w outside [1/2, 2]",
       "0..1", "share of completions, over optimizer steps", "below 0.2", when="multi_update"),
    _m("policy/clip_frac/low", "tokens held by the lower clip: rho < 1 - eps and A < 0", "-", "0..1", _TOKENS, "below 0.2"),
    _m("policy/clip_frac/high", "tokens held by the upper clip: rho > 1 + eps and A > 0", "-", "0..1", _TOKENS, "below 0.2"),
    # Completions
    _m("completion/tokens/mean", "length, the end token included", "-", "tokens", _ROWS, "well below max_completion_tokens"),
    _m("completion/tokens/max", "longest completion", "-", "tokens", "max over completions", "at most max_completion_tokens"),
    _m("completion/truncated_frac", "completions that hit max_completion_tokens", "-", "0..1", _ROWS, "near 0"),
    _m("completion/eos_frac", "completions that ended by themselves", "1 - truncated", "0..1", _ROWS, "near 1"),
    # Reference
    _m("ref/synced", "1 where the step ended in a sync", "-", "0/1", "last", _COUNTER),
    _m("ref/sync_count", "syncs so far", "-", "count", "last", _COUNTER),
    _m("ref/steps_since_sync", "steps since the last sync (or the start), this one included; 0 = synced now", "-", "steps",
       "last", "below reference.sync_steps"),
    _m("ref/lag", "age of the reference: of the policies in it, weighted as they are in it",
       "lag + 1, at a sync (1 - alpha)(lag + 1)", "steps", "last", "just after a sync settles at k (1 - alpha) / alpha"),
    _m("ref/param_distance", "distance of the policy from its reference after the update, before a sync",
       "||theta - theta_ref||_2", "-", "last", "none: grows with lr and steps"),
    _m("ref/kl_before_sync", "KL to the reference after the update, just before the sync, on this step's completions",
       "-rho log r", "nats/token", _SAMPLED, "as kl/ref/k1, which may be negative, too", when="sync"),
    _m("ref/kl_after_sync", "the same just after; 0 for a hard copy", "-rho log r", "nats/token", _SAMPLED,
       "below ref/kl_before_sync", when="sync"),
    _m("ref/compression_error", "model.lora, mixup_alpha < 1: what this sync left out of the average to keep its rank",
       "||D_kept - D||_F", "-", "over all adapted layers", "0, or far below ref/param_distance", when="adapter_average"),
    _m("ref/compression_bound", "how far such a reference can be from one whose syncs were all exact",
       "e_k + (1 - alpha) bound_(k-1)", "-", "last", "far below ref/param_distance", when="adapter_average"),
    # Optimizer
    _m("optim/lr", "learning rate of the last optimizer step", "-", "-", "last", "none: as optimizer.schedule says"),
    _m("optim/grad_norm", "gradient norm before clipping", "||g||_2", "-", "mean over optimizer steps", "finite"),
    _m("optim/noise_scale", "gradient noise scale, the batch that it suggests: with as many prompts a step the noise of the "
       "gradient is as large as the gradient; absent where optim/grad_signal is not above 0",
       "optim/grad_variance / optim/grad_signal", "prompts", "last",
       "near num_prompts_per_step; a ratio, so average the two apart", when="noise"),
    _m("optim/grad_variance", "variance of the gradient of one prompt", "(mean_p |g_p|^2 - |g|^2) / (1 - 1/P)", "-",
       "mean over prompts", "none: in the units of the loss", when="noise"),
    _m("optim/grad_signal", "square of the expected gradient, unbiased: may be negative in a step",
       "(P |g|^2 - mean_p |g_p|^2) / (P - 1)", "-", "mean over prompts", "none: in the units of the loss", when="noise"),
    _m("optim/skipped_updates", "updates that were not applied: loss or gradient not finite", "-", "updates", "sum", "0"),
    # Time and throughput
    _time("time/rollout_seconds", "sampling"),
    _time("time/transfer_seconds", "weights for the server and their probe; part of time/rollout_seconds", when="server"),
    _time("time/reward_seconds", "reward functions"),
    _time("time/logps_seconds", "forward passes without gradient (reference, initial, old)"),
    _time("time/update_seconds", "forward and backward passes, optimizer"),
    _time("time/sync_seconds", "parameter distance, and at a sync the copy and its two measurements"),
    _time("time/step_seconds", "the whole step"),
    _time("perf/completion_tokens_per_second", "sampled tokens per second of sampling", "tokens/s", "ratio of sums"),
    _time("perf/train_tokens_per_second", "prompt and completion tokens per second of the update", "tokens/s", "ratio of sums"),
    _time("perf/peak_memory_gib", "peak memory: of the step's tensors on a GPU, resident set so far on a CPU", "GiB", "max"),
    _time("memory/rollout_gib", "peak of the tensors while completions are sampled", "GiB", "max", when="gpu"),
    _time("memory/logps_gib", "peak of the tensors in passes without gradient, the probe included", "GiB", "max", when="gpu"),
    _time("memory/update_gib", "peak of the tensors in the update", "GiB", "max", when="gpu"),
    _time("memory/sync_gib", "peak of the tensors while the reference is measured and synchronised", "GiB", "max", when="gpu"),
    # Filtering
    _m("filter/truncated_frac", "completions left out: truncated", "-", "0..1", "share of completions", "near 0",
       when="filter"),
    _m("filter/kept_frac", "completions that the loss sees", "-", "0..1", "share of completions", "above 0.5", when="filter"),
    _m("filter/overlong_penalty", "soft overlong penalty", "DAPO eq. 13", "reward", "mean over completions", "near 0",
       when="filter"),
    # Progress
    _m("progress/step", "step", "-", "steps", "last", _COUNTER),
    _m("progress/optimizer_step", "optimizer steps so far", "-", "steps", "last", _COUNTER),
    _m("progress/prompts", "prompts seen so far", "-", "prompts", "sum", _COUNTER),
    _m("progress/tokens", "completion tokens trained on so far", "-", "tokens", "sum", _COUNTER),
    _m("progress/generated_tokens", "completion tokens sampled so far, in the loss or not", "-", "tokens", "sum", _COUNTER),
    # Evaluation
    _m("eval/<set>/greedy_accuracy", "prompts whose greedy completion the verifier accepts", "mean", "0..1", "over prompts",
       "rises", when="eval"),
    _m("eval/<set>/greedy_score", "the verifier's score of the greedy completion", "mean", "score", "over prompts", "rises",
       when="eval"),
    _m("eval/<set>/pass_at_<k>", "chance that at least one of k samples is accepted", "1 - C(n-c,k)/C(n,k)", "0..1",
       "unbiased estimator (Chen et al. 2021, eq. 1), mean over prompts", "rises", when="eval"),
    _m("eval/<set>/completion_tokens", "length of greedy completions", "mean", "tokens", "over prompts",
       "well below max_completion_tokens", when="eval"),
)
# fmt: on


_PATTERNS = tuple(
    (re.compile(r"[a-z0-9_.-]+".join(map(re.escape, re.split(r"<[^>]+>", metric.key)))), metric) for metric in REGISTRY
)


@cache
def find_metric(key: str) -> Metric | None:
    """Return the registry entry of a concrete key, or None."""
    return next((metric for pattern, metric in _PATTERNS if pattern.fullmatch(key)), None)
