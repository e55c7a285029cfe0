"""What a LoRA adapter of another system is here: PEFT's arguments, under the names that each system has for them."""

import math
import re
from collections.abc import Sequence

from grpo_core.interop.records import Conclusion, Settings, mapped, no_counterpart

RANK, ALPHA, DROPOUT, TARGETS = (f"model.lora.{key}" for key in ("rank", "alpha", "dropout", "target_modules"))
NO_DROPOUT = "no dropout here: with it, the policy that is trained is not the one that made the rollouts"
WHOLE_LAYERS = "the adapter alone is trained here, no layer beside it"
ONLY_LINEAR = "linear layers are adapted here, not single parameters"
NO_QUANTISATION = "no quantised weights here; nearest: model.dtype bfloat16, in which model.lora holds the frozen linear layers"
NO_DORA = "no DoRA here: W + (alpha / rank) B A, without a trained norm of columns"
EVERY_LINEAR = "every linear layer but the vocabulary head, as null here"
REGEX_REMARK = "names and ends of names here; of regular expressions, `.*\\.(name|name)` can be translated"
NO_REGEX = (
    "a regular expression: model.lora.target_modules has names and ends of names; until it is set, every linear layer but the "
    "vocabulary head gets an adapter"
)
SPECIAL = re.compile(r"[^\w.\-]")
"""What no name of a module has."""
ENDS = re.compile(r"\.\*\\\.(?:\((?:\?:)?(?P<several>\w+(?:\|\w+)*)\)|(?P<one>\w+))\$?")
"""A regular expression for all modules with one of some last parts: `.*\\.(q_proj|v_proj)`."""


def converted_dropout(settings: Settings, key: str) -> Conclusion:
    """Convert the dropout of the adapter."""
    value = settings[key]
    return no_counterpart(NO_DROPOUT, differs=True) if value else mapped({DROPOUT: 0.0})


def converted_alpha(settings: Settings, key: str, rank: int, *, is_stabilised: bool) -> Conclusion:
    """Convert alpha; rsLoRA's scale alpha / sqrt(rank) is that of alpha x sqrt(rank) here."""
    value = settings[key]
    if not is_stabilised:
        return mapped({ALPHA: value})
    return mapped(
        {ALPHA: value * math.sqrt(rank)}, f"rsLoRA's scale {value:g} / sqrt({rank}) is {value:g} x sqrt({rank}) / {rank}"
    )


def expression(pattern: str) -> Conclusion:
    """Convert a regular expression for the whole names of modules."""
    if (match := ENDS.fullmatch(pattern)) is None:
        return no_counterpart(NO_REGEX, differs=True)
    return mapped({TARGETS: (match["several"] or match["one"]).split("|")}, "the same modules: those whose names end so")


def names(targets: Sequence[str], remark: str = "", *, differs: bool = False) -> Conclusion:
    """Convert names of modules or ends of them, which PEFT and this project read alike."""
    return mapped({TARGETS: list(targets)}, remark, differs=differs)


def every_linear() -> Conclusion:
    """Return the conclusion about a word for all linear layers."""
    return mapped({TARGETS: None}, EVERY_LINEAR)


def twice_the_rank() -> Conclusion:
    """Return the conclusion about an alpha that is not given."""
    return mapped({ALPHA: None}, "2 x rank, as there")


def no_adapter() -> Conclusion:
    """Return the conclusion about a switch that is off."""
    return mapped({"model.lora": None})
