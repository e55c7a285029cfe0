"""What the systems have in common: AdamW, schedules, warm-up, counts of optimizer steps, vLLM and adapters."""

import math
import re
from collections.abc import Sequence
from typing import Any

from grpo_core.interop.rules import Entry, Number, Rule, Settings, dead, mapped, no_counterpart

SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
NO_SCHEDULE = "optimizer.schedule is constant, linear or cosine; it stays constant"
ALL_KEPT = "all are kept there; here the newest training.keep_checkpoints"
READABLE = (".jsonl", ".parquet", ".csv")
CACHE = "not a share of the GPU's memory here: the cache has the size rollout.vllm.kv_cache_gib"
SERVER_SLEEPS = "a server keeps its memory while the trainer computes; rollout.vllm.mode colocate has rollout.vllm.sleep"
CONTEXT = "the server's context is rollout.max_prompt_tokens + rollout.max_completion_tokens"
ONE_DEVICE = "one server on one device here"
RANK, ALPHA, DROPOUT, TARGETS = (f"model.lora.{key}" for key in ("rank", "alpha", "dropout", "target_modules"))
NO_DROPOUT = "no dropout here: with it, the policy that is trained is not the one that made the rollouts"
WHOLE_LAYERS = "the adapter alone is trained here, no layer beside it"
NO_REGEX = "a regular expression other than `.*\\.(name|name)`; every linear layer but the head gets an adapter"
_SPECIAL = re.compile(r"[^\w.\-]")
"""What no name of a module has."""
_ENDS = re.compile(r"\.\*\\\.(?:\((?:\?:)?(?P<several>\w+(?:\|\w+)*)\)|(?P<one>\w+))\$?")
"""A regular expression for all modules with one of some last parts: `.*\\.(q_proj|v_proj)`."""


def adam_betas(first: str, second: str) -> tuple[Rule, Rule]:
    """Return the rules of the keys that hold AdamW's decay rates."""

    def convert(settings: Settings, _key: str) -> dict[str, Any]:
        return {"optimizer.adam_betas": [settings[first], settings[second]]}

    return (
        Rule(first, Number, 0.9, "optimizer.adam_betas", convert),
        Rule(second, Number, 0.999, "optimizer.adam_betas", convert),
    )


def in_steps(count: float, updates: int) -> tuple[int, str]:
    """Return (steps, remark) for a count of optimizer steps, `updates` of them to a step."""
    steps = max(1, round(count / updates))
    is_rounded = steps * updates != count
    remark = f"{count:g} optimizer steps there, {updates} to a step here{': rounded' if is_rounded else ''}"
    return steps, remark if updates > 1 else ""


def warmup(amount: float, total: float | None, *, is_ignored: bool) -> Entry:
    """Return what becomes of a warm-up: in optimizer steps, or below 1 a share of all of them, if their number is known."""
    if is_ignored and amount:
        return dead("the schedule `constant` has no warm-up there (constant_with_warmup has)")
    if 0 < amount < 1 and total is None:
        reason = "a share of steps that depend on the size of the data; set optimizer.warmup_steps"
        return no_counterpart(reason, differs=True)
    updates = math.ceil(amount * (total or 0)) if amount < 1 else int(amount)
    return mapped({"optimizer.warmup_steps": updates})


def vllm_or_embedded(top_p: float, top_k: int | None) -> Entry:
    """Return the engine of a run whose completions came from vLLM, which needs top_p 1 and no top_k here.

    Where the source restricts sampling, its distribution is kept rather than its engine: which tokens are drawn is part of the
    training, who draws them is not.
    """
    if top_p >= 1 and (top_k is None or top_k <= 0):
        return mapped({"rollout.engine": "vllm"}, "the run starts a server of its own, in the environment of `make vllm`")
    reason = f"rollout.engine vllm is refused here with top_p {top_p:g}, top_k {top_k}: the embedded sampler keeps them"
    return mapped({"rollout.engine": "embedded"}, reason, differs=True)


def one_file(files: Sequence[str], remark: str = "", *, differs: bool = False) -> Entry:
    """Return what becomes of the files of a data set."""
    if len(files) > 1 or not files[0].endswith(READABLE):
        reason = f"one file here ({', '.join(READABLE)}): join or convert, and set data.source to file:<path>"
        return no_counterpart(reason, differs=True)
    return mapped({"data.source": f"file:{files[0]}"}, remark, differs=differs)


def adapter_dropout(settings: Settings, key: str) -> Entry:
    """Convert the dropout of an adapter."""
    return no_counterpart(NO_DROPOUT, differs=True) if settings[key] else mapped({DROPOUT: 0.0})


def adapted_modules(names: Sequence[str]) -> Entry:
    """Convert the modules of an adapter: their names or ends of them, a word for all, or one regular expression."""
    if names[0].strip().lower() in ("all", "all-linear"):
        return mapped({TARGETS: None}, "every linear layer but the vocabulary head, as null here")
    if len(names) > 1 or not _SPECIAL.search(names[0]):
        return mapped({TARGETS: list(names)})
    match = _ENDS.fullmatch(names[0])
    return mapped({TARGETS: (match["several"] or match["one"]).split("|")}) if match else no_counterpart(NO_REGEX, differs=True)
