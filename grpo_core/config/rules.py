"""Keys of what watches and measures a run: rules of the monitor, with what each kind watches; probe, evaluation, tracking."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from grpo_core.config.section import MOST_ROWS, PlainValues, Section, Steps, Text, Title, TrackingUri
from grpo_core.metrics import find_metric

Kind = Literal[
    "kl_budget",
    "kl_rate",
    "entropy_collapse",
    "zero_variance",
    "length_explosion",
    "sampler_mismatch",
    "truncated",
    "no_signal",
    "never_right",
    "non_finite",
    "stalled",
    "custom",
]
Action = Literal["warn", "stop", "off"]


@dataclass(frozen=True, kw_only=True)
class KindOfRule:
    """What rules of one kind have in common."""

    bound_name: str = "bound"
    """What messages call it."""
    metric: str | None = None
    """What it watches; None = the rule names it, or it watches no single figure."""
    window: int | None = None
    """Steps that count, unless the rule says otherwise; None = the kind has no window."""
    bound: float | None = None
    """Unless the rule says otherwise; None = that of the metric's registry entry (`alarm`)."""
    needs_bound: bool = False
    """Whether the rule must name one."""
    takes_bound: bool = True
    is_below: bool = False
    """Whether it is a breach to lie below the bound."""
    takes_every: bool = False
    """Whether each step of the window has to be in breach, not their median."""
    unit: str = ""
    advice: str = ""
    """What to do, in one clause; `{key:format}` stands for a figure of the step."""


_KL_ADVICE = "lower optimizer.lr or raise loss.beta"
KINDS: dict[Kind, KindOfRule] = {
    "kl_budget": KindOfRule(bound_name="budget", window=5, unit=" nats", advice=_KL_ADVICE),
    "kl_rate": KindOfRule(bound_name="rate", window=10, bound=0.1, unit=" nats a step", advice=_KL_ADVICE),
    "entropy_collapse": KindOfRule(
        metric="policy/entropy",
        window=5,
        is_below=True,
        unit=" nats",
        advice="exploration has ended: lower optimizer.lr, or raise rollout.temperature",
    ),
    "zero_variance": KindOfRule(
        metric="group/zero_std_frac",
        window=10,
        advice="hardly any group teaches: give prompts that are neither too hard nor easy",
    ),
    "length_explosion": KindOfRule(
        metric="completion/tokens/mean",
        window=10,
        bound=3.0,
        unit=" times that of the first steps",
        advice="see whether accuracy has grown with it, else set filtering.overlong_buffer_tokens",
    ),
    "sampler_mismatch": KindOfRule(metric="kl/sampler/k3", window=3, unit=" nats"),
    "truncated": KindOfRule(
        metric="completion/truncated_frac",
        window=3,
        bound=0.9,
        advice="nearly all completions are cut at {completion/tokens/max:.0f} tokens: raise rollout.max_completion_tokens",
    ),
    "no_signal": KindOfRule(
        metric="group/zero_std_frac",
        window=5,
        bound=0.999,
        takes_every=True,
        advice="no group teaches: the rewards of each are equal ({reward/mean:.3g} on average)",
    ),
    "never_right": KindOfRule(
        metric="group/all_wrong_frac",
        window=10,
        bound=0.999,
        takes_every=True,
        advice="no completion was right: easier prompts, another model, or a verifier that reads another format",
    ),
    "non_finite": KindOfRule(takes_bound=False),
    "stalled": KindOfRule(needs_bound=True, unit=" s"),
    "custom": KindOfRule(window=10, takes_bound=False),
}
ALWAYS: tuple[Kind, ...] = ("truncated", "no_signal", "never_right")
"""Kinds whose rules are checked without being listed."""
OF_KL = ("kl_budget", "kl_rate")
"""Kinds whose rules name a KL."""


class RuleConfig(Section):
    """One thing that the monitor watches."""

    kind: Kind
    """`kl_budget`: the median of `metric` over `window` steps is above `bound`. `kl_rate`: its slope is. `entropy_collapse`:
    the median of `policy/entropy` is below. `zero_variance`: that of `group/zero_std_frac` is above. `length_explosion`: that
    of `completion/tokens/mean` is more than `bound` times as large as in the first `window` steps. `sampler_mismatch`: that
    of `kl/sampler/k3` is above, so sampler and trainer have other probabilities. `non_finite`: a figure is NaN or infinite.
    `stalled`: `bound` seconds without a record. `custom`: `function` says so. `truncated`: the median of
    `completion/truncated_frac` is above. `no_signal`, `never_right`: `group/zero_std_frac` and `group/all_wrong_frac` are above
    in every step of the window, the latter where `data.answer_column` is set."""
    metric: Text | None = None
    """Metric of a `kl_budget` or `kl_rate` rule: a key that starts with `kl/`."""
    bound: float | None = Field(default=None, gt=0, le=1e9)
    """null = the bound of the metric in METRICS.md; `kl_rate` 0.1 nats a step, `length_explosion` 3, `truncated` 0.9,
    `no_signal` and `never_right` 0.999. `stalled` needs one, in seconds. A breach has ended once the figure is a fifth of
    the bound on the other side of it."""
    window: int | None = Field(default=None, ge=1, le=10_000)
    """Measurements of which the median counts, so that a single spike is none; null = 5 (`kl_budget`, `entropy_collapse`,
    `no_signal`), 3 (`sampler_mismatch`, `truncated`) or 10. Nothing is a breach before so many have been measured."""
    function: Text | None = None
    """Of a `custom` rule: `module:function`. It gets the figures of the last `window` steps, oldest first, as a list of
    {key: value}, and `options` as keywords; a text that it returns is an alert, None is none."""
    options: PlainValues = Field(default={})
    """Keyword arguments of `function`."""
    action: Action = "warn"
    """`stop` finishes the step under way, checkpoints and ends the run. `off`: it is not checked."""

    @property
    def traits(self) -> KindOfRule:
        """What rules of its kind have in common."""
        return KINDS[self.kind]

    @property
    def watched(self) -> str | None:
        """The metric that it is about; None for rules about no single one."""
        return self.traits.metric or self.metric

    @property
    def steps(self) -> int:
        """How many steps count."""
        return self.window or self.traits.window or 1

    @property
    def begins_at_syncs(self) -> bool:
        """Whether its window begins anew at every sync: what it watches is a KL to the reference."""
        return self.kind in OF_KL and (self.metric or "").startswith("kl/ref/")

    @property
    def limit(self) -> float | None:
        """The bound: the rule's own, its kind's, or that of the metric in the registry."""
        metric = find_metric(self.watched or "")
        return self.bound or self.traits.bound or (metric.alarm if metric else None)

    @property
    def name(self) -> str:
        """Name it among the rules of a run: `kl_budget.kl/ref/drift`, `stalled`, `custom.my_rules:drift`."""
        of = self.metric or self.function
        return self.kind if of is None else f"{self.kind}.{of}"


class MonitorConfig(Section):
    """Rules that are checked at every record of the journal."""

    rules: Annotated[tuple[RuleConfig, ...], Field(max_length=100)] = (
        RuleConfig(kind="non_finite", action="stop"),
        RuleConfig(kind="stalled", bound=600.0),
        RuleConfig(kind="sampler_mismatch", bound=0.01),
        RuleConfig(kind="kl_budget", metric="kl/ref/drift"),
        RuleConfig(kind="kl_rate", metric="kl/init/drift"),
        RuleConfig(kind="entropy_collapse"),
        RuleConfig(kind="zero_variance"),
        RuleConfig(kind="length_explosion"),
    )
    """Each breach is an alert in MLflow and Prefect with the bound, the value and the step. Rules of the kinds `truncated`,
    `no_signal` and `never_right` are checked beside those that are listed, unless one of their kind or no rule at all is."""


class ProbeConfig(Section):
    """The fixed probe set, on which the KL is exact and the random numbers are the same at every step and in every arm."""

    every_steps: Steps | None = None
    """The probe set is completed and measured before the update of every so many steps; null = never."""
    num_prompts: int = Field(default=16, ge=1, le=MOST_ROWS)
    """Prompts of the probe set: the first held-out ones, or training prompts where nothing is held out."""


class EvaluationConfig(Section):
    """Held-out evaluation: greedy accuracy, pass@1 and pass@k by one verifier alone."""

    verifier: Text | None = None
    """The reward function whose score decides what is correct; null = the first of `rewards`."""
    pass_score: float = Field(default=1.0, ge=0, le=1e6)
    """A completion is correct where the verifier's score is at least this."""
    num_prompts: int | None = Field(default=200, ge=1, le=MOST_ROWS)
    """Held-out prompts of the evaluation before and after training; null = all of them."""
    samples: int = Field(default=4, ge=0, le=65_536)
    """Sampled completions of each prompt, for pass@k; 0 = greedy only."""
    k: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] = Field(default=(1, 4), max_length=1000)
    """The k of pass@k; each at most `samples`."""
    every_steps: Steps | None = None
    """Also evaluate (greedy) during training, after every so many steps; null = before and after only."""
    every_num_prompts: int = Field(default=64, ge=1, le=MOST_ROWS)
    """Held-out prompts of the evaluations during training."""


class TrackingConfig(Section):
    """Where MLflow is."""

    uri: TrackingUri | None = None
    """Tracking store or server; null = MLFLOW_TRACKING_URI, else SQLite in the folder of the run directories. A password
    is refused: of a server it goes into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN, of a
    database into MLFLOW_TRACKING_URI, for which `postgresql://***@host/db` stands."""
    experiment: Title = "grpo"
    """MLflow experiment; null or left out of a file = the project: the file's folder, or the preset's name."""
    also: Annotated[tuple[Literal["wandb", "trackio", "tensorboard"], ...], Field(max_length=3)] = ()
    """Trackers that get the journal's figures beside MLflow; each is installed as an extra (`grpo-flow[wandb]`)."""
    log_policy: bool = True
    """Keep the final policy's weights as an MLflow artifact; off = only their place and digest."""
    run_name: Title | None = None
    """Name of the run; null = beta, group size, sync steps, seed, and the first few others that differ from the preset."""
    parent: Text | None = None
    """MLflow run id of the sweep that the run belongs to; null = it stands alone."""
    labels: dict[str, str] = Field(default={})
    """Tags and parameters of the MLflow run that group it with others, such as sweep and arm. A tag that
    this project or MLflow sets, or a key of the configuration, is refused."""
    git_diff: bool = True
    """Keep the uncommitted changes of the code in provenance.json, also in MLflow; off = their digest alone."""
