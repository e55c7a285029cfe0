"""Rows of the metric registry: how the policy differs from others on the probe set, beside the exact KL, and where."""

_TOKENS = "mean over completion tokens"
_KL = "sum_v pi (log pi - log pi_0)"
_AS_FULL = "as kl/probe/full_init"

# A table, formatted by hand: key, meaning, formula, unit, reduction, healthy.
# fmt: off
PROBE_ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("kl/probe/se", "standard error of kl/probe/full", "as kl/ref/se", "nats/token", "over prompts",
     "well below kl/probe/full"),
    ("kl/probe/se_init", "standard error of kl/probe/full_init", "as kl/ref/se", "nats/token", "over prompts",
     "well below kl/probe/full_init"),
    ("kl/probe/forward_init",
     "forward KL of completions from the initial policy, on its own completions of the probe prompts: predicts forgetting",
     "sum_t sum_v pi_0 (log pi_0 - log pi)", "nats/completion", "mean over completions",
     "none: grows with the length of completions; compare runs"),
    ("kl/probe/forward_init_se", "standard error of kl/probe/forward_init", "std / sqrt(P)", "nats/completion", "over prompts",
     "well below kl/probe/forward_init"),
    ("kl/probe/forward_own_init", "forward KL to the initial policy on the policy's own completions",
     "sum_v pi_0 (log pi_0 - log pi)", "nats/token", _TOKENS, f"{_AS_FULL}; far above it: something was lost"),
    ("kl/probe/tv_init", "total variation to the initial policy: the probability that has moved", "1/2 sum_v |pi - pi_0|",
     "0..1", _TOKENS, "at most sqrt(kl/probe/full_init / 2)"),
    ("kl/probe/renyi_half_init", "Renyi divergence of order 1/2 to the initial policy", "-2 log sum_v sqrt(pi pi_0)",
     "nats/token", _TOKENS, "at most kl/probe/full_init"),
    ("kl/probe/top1_changed_init", "positions whose most likely token is another one than the initial policy's",
     "argmax pi != argmax pi_0", "0..1", _TOKENS, "rises slowly"),
    ("kl/probe/correct_init", "kl/probe/full_init over the completions that the verifier accepts; absent where there is none",
     _KL, "nats/token", _TOKENS, _AS_FULL),
    ("kl/probe/wrong_init", "the same over those that it does not accept", _KL, "nats/token", _TOKENS, _AS_FULL),
    ("kl/probe/init_at_<position>", "the same over the positions 0, 1, 2-3, 4-7, 8-15, ..., named by the first of each", _KL,
     "nats/token", _TOKENS, "none: shows where the drift is"),
    ("kl/probe/top_decile_share_init",
     "share of all nats to the initial policy that the tenth of prompts with most of them has",
     "sum of the largest P/10 / sum", "0..1", "ratio of sums", "near 0.1: no prompt stands out"),
)
# fmt: on
