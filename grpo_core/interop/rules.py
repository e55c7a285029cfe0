"""What the table of a system is made of: how a key is read, what becomes of it, and which keys have no counterpart.

Values are read by pydantic in its lax mode, as the systems' own argument parsers read them: `1e-5`, `8.0` and `False` may be
text. A rule gives `{our key: value}`, or a `Entry` where the key has no counterpart or means something else there.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from grpo_core.config.names import BUILTIN_REWARDS, is_import_path
from grpo_core.errors import ConfigError, shown
from grpo_core.interop.vlm_r1_rows import JoinedRows

Source = Literal["trl", "open-r1", "roll", "vlm-r1"]
TRACKERS = ("wandb", "trackio", "tensorboard")
LARGEST = 1e15
"""Beyond it, no count or factor means anything, and arithmetic would overflow."""


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | int | float) else value


Whole = Annotated[int, BeforeValidator(_no_flag), Field(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[int, BeforeValidator(_no_flag), Field(ge=1, le=LARGEST)]
Number = Annotated[float, BeforeValidator(_no_flag), Field(ge=-LARGEST, le=LARGEST)]
Texts = Annotated[list[str], BeforeValidator(_as_list)]
Numbers = Annotated[list[Number], BeforeValidator(_as_list)]
_reader = functools.cache(TypeAdapter)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What becomes of one key of the source: one line of the report."""

    fate: Literal["mapped", "no_counterpart", "dead", "unknown"]
    targets: Mapping[str, Any] = field(default_factory=dict)
    """{our key path: value}."""
    remark: str = ""
    """Where semantics differ, what to use instead, or why the key does nothing."""
    differs: bool = False
    """The imported run behaves otherwise than the source's would."""
    key: str = ""
    """Key in the source and its value, set by the conversion."""
    value: Any = None
    is_default: bool = False
    """The key is absent from the file; the value is the source system's default."""


def mapped(targets: Mapping[str, Any], remark: str = "", *, differs: bool = False) -> Entry:
    """Return the conclusion about a key that has a counterpart."""
    return Entry(fate="mapped", targets=targets, remark=remark, differs=differs)


def no_counterpart(reason: str, *, differs: bool = False) -> Entry:
    """Return the conclusion about a key that has none; `differs` where leaving it out changes the training."""
    return Entry(fate="no_counterpart", remark=reason, differs=differs)


def dead(reason: str) -> Entry:
    """Return the conclusion about a key that does nothing in the source system itself."""
    return Entry(fate="dead", remark=reason)


@dataclass(frozen=True)
class Settings:
    """The typed values of a source file, with the source system's defaults where a key is absent."""

    path: Path
    given: Mapping[str, Any]
    """The file's own values, flat, under the names that the system has now."""
    system: "System"
    processes: int | None
    """Training processes, where the file, its script or the user tells."""
    rows: Path | None = None
    """New file for the rows of the source's data; None = they are read from where they are."""

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key that has a rule.

        Raises:
            ConfigError: the file holds a value of the wrong type.
        """
        rule = self.system.find_rule(key)
        assert rule is not None, key
        value = self.given.get(key, rule.default)
        try:
            return _reader(rule.kind).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            hint = " (YAML reads no, off, yes and on as false and true: quote them)" if isinstance(value, bool) else ""
            raise self.refuse(f"{key}: {reason}, got {shown(value)}{hint}; correct it in the file") from error

    def refuse(self, text: str) -> ConfigError:
        """Return the error that names the file."""
        return ConfigError(f"config {self.path}: {text}")


@dataclass(frozen=True)
class Rule:
    """How one key of another system is read and converted. Positional: the tables read as columns."""

    key: str
    """Key in the source; `*` stands for any one name."""
    kind: Any
    """Type that pydantic reads."""
    default: Any
    """What the source system uses where the key is absent."""
    ours: str
    """Our keys, separated by commas."""
    convert: Callable[[Settings, str], Entry | Mapping[str, Any]]
    remark: str = ""
    """Of the report, where `convert` gives none."""
    needs: str = field(default="", kw_only=True)
    """Switch without which the key does nothing."""
    unset: str = field(default="", kw_only=True)
    """Why null, 0 or nothing has no counterpart."""
    reports_default: bool = field(default=False, kw_only=True)
    """Without a counterpart, it is reported also where the key is absent."""

    def conclude(self, settings: Settings, key: str) -> Entry:
        """Return what becomes of a key that the rule is for."""
        value = settings[key]  # the type check comes first, whatever else decides
        if self.needs and not settings[self.needs]:
            return dead(f"does nothing without {self.needs}")
        if self.unset and not value:
            return no_counterpart(self.unset)
        found = self.convert(settings, key)
        return found if isinstance(found, Entry) else mapped(found, self.remark)


@dataclass(frozen=True, kw_only=True)
class System:
    """A source system: every key it knows, and what becomes of each."""

    name: Source
    title: str
    version: str
    """What its names and defaults were read from: release or commit, with its date."""
    rules: Sequence[Rule]
    ignored: Mapping[str, str]
    """{key or pattern without a counterpart: why, or what to use instead}."""
    dead: Mapping[str, str]
    """{key that the system ships or documents and does not read: why}."""
    assumptions: Callable[[Settings], tuple[str, ...]]
    """What the conversion had to assume about a file."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """{older name: name now}."""
    joined: "Callable[[Settings], JoinedRows] | None" = None
    """What a new file for the rows of its data holds; None = its rows are ours as they are."""
    is_nested: bool = False
    """Its keys are paths through sections, and its values may refer to each other as `${key}`."""

    def find_rule(self, key: str) -> Rule | None:
        """Return the rule of a key, if it has one."""
        return next((rule for rule in self.rules if fnmatchcase(key, rule.key)), None)

    def known(self) -> set[str]:
        """Return every key and pattern."""
        return {*(rule.key for rule in self.rules), *self.ignored, *self.dead}


def by_key(reasons: Mapping[str, str]) -> dict[str, str]:
    """Return {key: reason} of {reason: keys, separated by blanks}."""
    return {key: reason for reason, keys in reasons.items() for key in keys.split()}


def copied(
    key: str,
    ours: str,
    kind: Any,
    default: Any,
    remark: str = "",
    *,
    zero_is_off: bool = False,
    needs: str = "",
    unset: str = "",
) -> Rule:
    """Return the rule of a key whose value is ours as it is; `zero_is_off`: what is null here is 0 or below there."""

    def convert(settings: Settings, name: str) -> Mapping[str, Any]:
        value = settings[name]
        return {ours: None if zero_is_off and value is not None and value <= 0 else value}

    return Rule(key, kind, default, ours, convert, remark, needs=needs, unset=unset)


def renamed(  # noqa: PLR0917
    key: str, ours: str, kind: Any, default: Any, names: Mapping[Any, Any], remark: str = "", *, otherwise: str = ""
) -> Rule:
    """Return the rule of a key whose values have other names here, {theirs: ours}; any further value has no counterpart."""

    def convert(settings: Settings, name: str) -> Entry | Mapping[str, Any]:
        value = settings[name]
        return {ours: names[value]} if value in names else no_counterpart(otherwise, differs=True)

    return Rule(key, kind, default, ours, convert, remark)


def also_tracked(key: str, default: str | None = None) -> Rule:
    """Return the rule of the key that names trackers: here they get every step, and MLflow does in any case."""

    def convert(settings: Settings, name: str) -> Entry:
        named = _as_list(settings[name] or [])
        others = [one for one in named if one not in (*TRACKERS, "none", "mlflow", "stdout")]
        later = "beside MLflow; a run from Python is sent there by `grpo track <run>`, once it has ended"
        remark = f"{', '.join(others)}: no such tracker here; MLflow has every step" if others else later
        return mapped({"tracking.also": [one for one in TRACKERS if one in named]}, remark)

    return Rule(key, str | list[str] | None, default, "tracking.also", convert)


def feature(key: str, kind: Any, default: Any, reason: str, *, off: Sequence[Any] = (), needs: str = "") -> Rule:
    """Return the rule of a feature that does not exist here: harmless where it is off (its default, or one of `off`)."""

    def convert(settings: Settings, name: str) -> Entry:
        is_off = settings[name] in (default, *off)
        return no_counterpart("off in the file, nothing to replace" if is_off else reason, differs=not is_off)

    return Rule(key, kind, default, "", convert, needs=needs)


def read_elsewhere(key: str, kind: Any, default: Any, reason: str) -> Rule:
    """Return the rule of a key without a counterpart of its own, whose value other keys' conversions read."""
    return Rule(key, kind, default, "", lambda _settings, _key: no_counterpart(reason))


def with_defaults(rules: Sequence[Rule], defaults: Mapping[str, Any], *others: Rule) -> tuple[Rule, ...]:
    """Return the rules of a system that is built on another: with its own defaults, and `others` instead of or after them."""
    of_key = {rule.key: replace(rule, default=defaults.get(rule.key, rule.default)) for rule in rules}
    return tuple((of_key | {rule.key: rule for rule in others}).values())


SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
NO_SCHEDULE = "optimizer.schedule is constant, linear or cosine; it stays constant"
ALL_KEPT = "all are kept there; here the newest training.keep_checkpoints"
READABLE = (".jsonl", ".parquet", ".csv")
CACHE = "not a share of the GPU's memory here: the cache has the size rollout.vllm.kv_cache_gib"
SERVER_SLEEPS = "a server keeps its memory while the trainer computes; rollout.vllm.mode colocate has rollout.vllm.sleep"
CONTEXT = "the server's context is rollout.max_prompt_tokens + rollout.max_completion_tokens"
ONE_DEVICE = "one server on one device here"
RANK, ALPHA, DROPOUT, TARGETS = (f"model.lora.{key}" for key in ("rank", "alpha", "dropout", "target_modules"))
WHOLE_LAYERS = "the adapter alone is trained here, no layer beside it"
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


def in_steps(ours: str, count: float, updates: int) -> Entry:
    """Return what becomes of a count of optimizer steps, `updates` of them to a step."""
    steps = max(1, round(count / updates))
    rounded = ": rounded" if steps * updates != count else ""
    return mapped({ours: steps}, f"{count:g} optimizer steps there, {updates} to a step here{rounded}" if updates > 1 else "")


def warmup(amount: float, total: float | None, *, is_ignored: bool) -> Entry:
    """Return what becomes of a warm-up: in optimizer steps, or below 1 a share of all of them, if their number is known."""
    if is_ignored and amount:
        return dead("the schedule `constant` has no warm-up there (constant_with_warmup has)")
    if 0 < amount < 1 and total is None:
        return no_counterpart("a share of steps that depend on the size of the data; set optimizer.warmup_steps", differs=True)
    return mapped({"optimizer.warmup_steps": math.ceil(amount * (total or 0)) if amount < 1 else int(amount)})


def vllm_or_embedded(top_p: float, top_k: int | None) -> Entry:
    """Return the engine of a run whose completions came from vLLM, which needs top_p 1 and no top_k here.

    Where the source restricts sampling, its distribution is kept rather than its engine: which tokens are drawn is part of the
    training, who draws them is not.
    """
    if top_p >= 1 and (top_k is None or top_k <= 0):
        return mapped({"rollout.engine": "vllm"}, "the run starts a server of its own, in the environment of `make vllm`")
    return mapped(
        {"rollout.engine": "embedded"},
        f"rollout.engine vllm is refused here with top_p {top_p:g}, top_k {top_k}: the embedded sampler keeps them",
        differs=True,
    )


def one_file(files: Sequence[str], remark: str = "", *, differs: bool = False) -> Entry:
    """Return what becomes of the files of a data set."""
    if len(files) == 1 and files[0].endswith(READABLE):
        return mapped({"data.source": f"file:{files[0]}"}, remark, differs=differs)
    reason = f"one file here ({', '.join(READABLE)}): join or convert, and set data.source to file:<path>"
    return no_counterpart(reason, differs=True)


def adapter_dropout(settings: Settings, key: str) -> Entry:
    """Convert the dropout of an adapter."""
    reason = "no dropout here: with it, the policy that is trained is not the one that made the rollouts"
    return no_counterpart(reason, differs=True) if settings[key] else mapped({DROPOUT: 0.0})


def adapted_modules(names: Sequence[str]) -> Entry:
    """Convert the modules of an adapter: their names or ends of them, a word for all, or one regular expression."""
    if names[0].strip().lower() in ("all", "all-linear"):
        return mapped({TARGETS: None}, "every linear layer but the vocabulary head, as null here")
    if len(names) > 1 or re.fullmatch(r"[\w.\-]+", names[0]):
        return mapped({TARGETS: list(names)})
    if (match := _ENDS.fullmatch(names[0])) is not None:
        return mapped({TARGETS: (match["several"] or match["one"]).split("|")})
    return no_counterpart(
        "a regular expression other than `.*\\.(name|name)`; every linear layer but the head gets an adapter", differs=True
    )


def convert_rewards(
    settings: Settings, weighted: Sequence[tuple[str, float]], find: Callable[[Settings, str, float], Entry]
) -> Entry:
    """Return what becomes of a list of reward functions.

    Args:
        settings: of the file.
        weighted: (name there, weight).
        find: from all settings, the name of a reward and its weight to what becomes of it: `rewards` without the weight,
            another key of ours, or nothing.
    """
    rewards, targets, found = list[dict[str, Any]](), dict[str, Any](), list[tuple[str, Entry]]()
    for name, weight in weighted:
        here = find(settings, name, weight)
        if {item["fn"] for item in here.targets.get("rewards", ())} & {reward["fn"] for reward in rewards}:
            here = no_counterpart("its counterpart is there already, and each function is listed once", differs=True)
        missing = [] if here.targets else [{"fn": f"{name.replace(':', '.')} ({settings.system.name})"}]
        rewards += [{"fn": item["fn"], "weight": weight, **item} for item in here.targets.get("rewards", missing)]
        targets.update(here.targets)
        found.append((name, here))
    remark = "; ".join(f"{name}: {here.remark}" for name, here in found if here.remark)
    return mapped(
        {**targets, **({"rewards": rewards} if rewards else {})}, remark, differs=any(here.differs for _, here in found)
    )


def is_missing(fn: str) -> bool:
    """Return whether a name in `rewards` is no function, but what stands for one that is left to write."""
    return fn not in BUILTIN_REWARDS and not is_import_path(fn)


def weighted_names(settings: Settings, names: Sequence[str]) -> list[tuple[str, float]]:
    """Return (name, weight) of each reward.

    Raises:
        ConfigError: there are not as many weights as rewards.
    """
    weights = settings["reward_weights"] or [1.0] * len(names)
    if len(weights) != len(names):
        raise settings.refuse(f"reward_weights: {len(weights)} weights for {len(names)} rewards; give one for each")
    return list(zip(names, weights, strict=True))


def overlong(settings: Settings, limit: int, buffer: int, weight: float) -> Entry:
    """Return the soft overlong penalty: here a filter whose limit is the longest completion, with weight 1."""
    is_same = settings["max_completion_length"] == limit and weight == 1
    there = "" if is_same else f"; there below {limit} tokens, with weight {weight:g}"
    return mapped(
        {"filtering.overlong_buffer_tokens": buffer},
        f"filtering.overlong_buffer_tokens, below rollout.max_completion_tokens with weight 1{there}",
        differs=not is_same,
    )
