"""What parameters, settings and figures are called in sentences, and how figures are written.

Settings in a name are spelled by `grpo_core.config.spelling`; templates find both here.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from grpo_core.config.spelling import KNOB_NAMES, arm_name, level_name
from grpo_core.text import visible

if TYPE_CHECKING:
    from grpo_core.sweep.arms import Arm
    from grpo_core.sweep.statistics.paired import PairedEstimate

UNKNOWN = "-"
MANY_SEEDS = 5
"""From so many seeds on an interval stands for them; fewer are shown themselves."""
MINUS = "\N{MINUS SIGN}"
MOST_LISTED = 3
DRAWN_BY = ("rollout.temperature", "rollout.top_p", "rollout.top_k")
"""Keys on which a policy's KL figures depend beside its weights."""


def kl_lines(differing: Iterable[str]) -> list[str]:
    """Return the line that says, where runs differ in how tokens are drawn, that their KL figures do not compare."""
    keys = [key for key in differing if key in DRAWN_BY]
    what = "their KL figures are of policies at different temperatures, or on other tokens, and do not compare"
    return [f"runs differ in {', '.join(keys)}: {what}"] if keys else []


def knob_name(knob: str) -> str:
    """Return what a knob is called in a sentence."""
    return KNOB_NAMES[knob].name if knob in KNOB_NAMES else visible(knob)


def knob_title(knob: str) -> str:
    """Return a knob's name with its key and unit, for headings and axes.

    >>> knob_title("reference.sync_steps"), knob_title("optimizer.lr")
    ('sync period (reference.sync_steps, steps)', 'optimizer.lr')
    """
    known = KNOB_NAMES.get(knob)
    return visible(knob) if known is None else f"{known.name} ({', '.join(filter(None, (knob, known.unit)))})"


def capital(name: str) -> str:
    """Return a name as a title has it; a key stays as it is written.

    >>> capital("group size"), capital("β"), capital("optimizer.lr"), capital("kl/init/seq")
    ('Group size', 'β', 'optimizer.lr', 'kl/init/seq')
    """
    return name if len(name) == 1 or "." in name or "/" in name else name[:1].upper() + name[1:]


def where_level(knob: str, level: Any) -> str:
    """Return a level as a place.

    >>> where_level("reference.sync_steps", None), where_level("loss.beta", 4.0)
    ('where the reference never moves', 'with β 4')
    """
    place = KNOB_NAMES[knob].where_null if knob in KNOB_NAMES and level is None else ""
    return place or f"with {knob_name(knob)} {level_name(knob, level)}"


def setting_phrase(values: Mapping[str, Any]) -> str:
    """Return what a setting is called in a sentence.

    >>> setting_phrase({"loss.beta": 0.04, "rollout.group_size": 8, "reference.sync_steps": None})
    'β 0.04 with G 8 and sync never'
    """
    first, *others = arm_name(values).split(" · ")
    return f"{first} with {' and '.join(others)}" if others else first


def arm_names(arms: Sequence["Arm"]) -> str:
    """Return settings by name, the first few of them."""
    return first_few([arm.name for arm in arms])


def significant(value: float, digits: int = 3) -> str:
    """Return a figure to so many significant digits, at most `digits` decimals above 1; a dash where it is unknown.

    >>> significant(0.71234), significant(0.00012345), significant(12345.6), significant(float("nan")), significant(-0.0)
    ('0.712', '0.000123', '12346', '-', '0')
    """
    if math.isnan(value):
        return UNKNOWN
    if value == 0 or math.isinf(value):
        return f"{abs(value) if value == 0 else value:g}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(decimals, 8)}f}" if abs(value) >= 1e-5 else f"{value:.{digits - 1}e}"


def signed(value: float, text: Callable[[float], str] = lambda size: significant(size, 2)) -> str:
    """Return a difference with its sign, to two significant digits unless `text` writes it otherwise.

    >>> signed(0.3083), signed(-0.0512) == MINUS + "0.051", signed(0.0)
    ('+0.31', True, '0')
    """
    sign = "+" if value > 0 else MINUS if value < 0 else ""
    return f"{sign}{text(abs(value))}"


def over_seeds(values: Sequence[float], mean: float, half: float, *, is_share: bool = False) -> str:
    """Return a mean with the figure of each seed, or from 5 seeds on with its 95 % interval, that of a share inside 0 to 1.

    >>> over_seeds([0.9, 0.5], 0.7, 2.54), over_seeds([0.9] * 5, 0.9, 0.2, is_share=True)
    ('0.700 (0.900 · 0.500)', '0.900 [0.700, 1.000]')
    """
    if len(values) < MANY_SEEDS:
        return f"{plain(mean)} ({' · '.join(map(plain, values))})" if len(values) > 1 else plain(mean)
    low, high = (max(0.0, mean - half), min(1.0, mean + half)) if is_share else (mean - half, mean + half)
    return " ".join(bounds(mean, low, high))


def plain(value: float) -> str:
    """Return a figure with three decimals where these are enough, so that figures side by side line up.

    >>> plain(0.7), plain(0.0004), plain(123.4)
    ('0.700', '0.000400', '123')
    """
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 10 else significant(value)


def bounds(mean: float, low: float, high: float, sign: int = 1, most: float = math.inf) -> tuple[str, str]:
    """Return a mean and its interval, all with the decimals that the width calls for.

    It is turned round for `sign` -1, and ends where the difference would be larger than it can be (`most`).

    >>> bounds(0.1234, 0.05, 0.19), bounds(0.00012, 0.00008, 0.00016), bounds(0.1234, 0.05, 0.19, -1)
    (('0.123', '[0.050, 0.190]'), ('0.00012', '[0.00008, 0.00016]'), ('-0.123', '[-0.190, -0.050]'))
    """
    low, high = sorted((max(-most, min(most, sign * low)), max(-most, min(most, sign * high))))
    largest = max(abs(mean), abs(low), abs(high))
    decimals = 3 if largest == 0 or largest >= 0.01 else min(1 - math.floor(math.log10(largest)), 10)
    decimals = decimals if largest < 10 else 2 if largest < 100 else 0
    middle, left, right = (_signed(value, decimals) for value in (sign * mean, low, high))
    return middle, f"[{left}, {right}]"


def estimate_text(estimate: "PairedEstimate", sign: int = 1, most: float = math.inf) -> str:
    """Return a difference with its 95 % interval as `bounds` does; without it where there is none, or no spread."""
    mean, low, high = estimate.mean, estimate.low, estimate.high
    if estimate.spread == "constant":
        return f"{plain(sign * mean)}, the same in every seed"
    return plain(sign * mean) if math.isnan(low) else " ".join(bounds(mean, low, high, sign, most))


def p_text(p: float) -> str:
    """Return a p-value to two digits, never as a bare 0 unless it is one.

    >>> p_text(0.0234), p_text(1e-9), p_text(1.0), p_text(0.0)
    ('0.023', '< 0.0001', '1', '0')
    """
    if math.isnan(p):
        return UNKNOWN
    return "< 0.0001" if 0 < p < 1e-4 else f"{p:.2g}"


def p_words(p: float) -> str:
    """Return a p-value as a sentence has it.

    >>> p_words(0.0234), p_words(1e-9)
    ('p = 0.023', 'p < 0.0001')
    """
    text = p_text(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def duration(seconds: float) -> str:
    """Return a time with its unit.

    >>> duration(12.3), duration(200), duration(7300), duration(float("nan"))
    ('12 s', '3 min 20 s', '2 h 01 min', '-')
    """
    if math.isnan(seconds):
        return UNKNOWN
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60:02} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02} min"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def first_few(texts: Sequence[str], most: int = MOST_LISTED) -> str:
    """Return the first few texts and how many more there are.

    >>> first_few(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def _signed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if not float(text) else text


# The figures of a run


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One figure of a run."""

    key: str
    """Column of the results; NaN where it is unknown."""
    metric: str | None = None
    """The metric of which it is the value of the last steps: their mean, of a probe the last one in them."""
    table: Literal["reached", "used"] | None = None
    """The table of arms that has a column of it, once any run has it."""
    heading: str = ""
    unit: str = ""
    shown: Literal["spread", "mean", "count", "time"] = "spread"
    """As a mean with what `over_seeds` shows beside it, as a mean alone, as a whole number, or as a time."""
    outcome: str = ""
    """What it is called where the levels of knobs are compared in it; empty where they are not."""
    drift: str = ""
    """Unit and kind of a drift from the initial policy, for the answer."""
    in_mlflow: bool = False
    """Whether each run gets it as metric `sweep/<key>`, so that MLflow's compare page has it."""

    def text(self, values: Sequence[float], mean: float, half: float, *, is_share: bool = False) -> str:
        """Return a mean over runs as its table shows it."""
        if self.shown == "time":
            return duration(mean)
        if self.shown == "count":
            return UNKNOWN if math.isnan(mean) else f"{mean:,.0f}"
        return over_seeds(values, mean, half, is_share=is_share) if self.shown == "spread" else plain(mean)


MEASURES = {
    measure.key: measure
    for measure in (
        Measure(key="objective", table="reached", heading="objective", outcome="objective", in_mlflow=True),
        Measure(
            key="accuracy",
            table="reached",
            heading="held-out accuracy",
            unit="share",
            outcome="held-out accuracy",
            in_mlflow=True,
        ),
        Measure(key="accuracy_before"),
        Measure(key="objective_before"),
        Measure(
            key="reward",
            metric="reward/mean",
            table="reached",
            heading="reward",
            outcome="reward at the end",
            in_mlflow=True,
        ),
        Measure(key="kl_ref", metric="kl/ref/drift"),
        Measure(key="kl_init", metric="kl/init/drift"),
        Measure(
            key="kl_ref_seq",
            metric="kl/ref/seq",
            table="reached",
            heading="KL to the reference",
            unit="nats/completion",
            in_mlflow=True,
        ),
        Measure(
            key="kl_init_seq",
            metric="kl/init/seq",
            table="reached",
            heading="KL to the initial policy",
            unit="nats/completion",
            outcome="KL to the initial policy, nats per completion",
            drift="nats per completion",
            in_mlflow=True,
        ),
        Measure(
            key="probe_kl_init",
            metric="kl/probe/full_init",
            table="reached",
            heading="the same, exact",
            unit="nats/token, last probe",
            outcome="exact KL to the initial policy, nats per token (last probe)",
            drift="exact, nats per token on the probe set",
            in_mlflow=True,
        ),
        Measure(key="drift", heading="drift", in_mlflow=True),
        Measure(key="steps", table="used", heading="steps", shown="count"),
        Measure(key="completions", table="used", heading="completions", shown="count"),
        Measure(key="tokens", table="used", heading="tokens", unit="generated", shown="count"),
        Measure(
            key="train_seconds",
            table="used",
            heading="training steps",
            unit="time",
            shown="time",
            outcome="seconds in training steps",
        ),
        Measure(key="wall_seconds", table="used", heading="whole run", unit="time", shown="time"),
        Measure(
            key="zero_std_frac",
            table="used",
            heading="groups with equal rewards",
            unit="share",
            shown="mean",
            outcome="share of groups with equal rewards",
            in_mlflow=True,
        ),
        Measure(key="advantage_rms_factor", table="used", heading="advantage RMS factor", shown="mean", in_mlflow=True),
        Measure(key="effective_beta", table="used", heading="effective β", shown="mean", in_mlflow=True),
    )
}
OUTCOMES = tuple(key for key, measure in MEASURES.items() if measure.outcome)
"""What effects.parquet says of each knob; the objective is the question, the rest explains it."""
DRIFTS = ("probe_kl_init", "kl_init_seq")
"""Measures of the drift from the initial policy, the better first."""
