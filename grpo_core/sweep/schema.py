"""Every key of a sweep file: meaning, unit and range stand under the field; `plan.py` checks what takes more than one key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from grpo_core.config.section import PlainValues, Section, Steps, StudyUrl, Text
from grpo_core.config.spelling import SETTING
from grpo_core.metrics import LAST_STEPS, find_metric

MOST_TRIALS = 10_000
"""Arms that a search tries."""
NAMES = {"eval/heldout/greedy_accuracy": "held-out accuracy", "reward/mean": "reward"}
"""Metrics that people know by another name."""
STUDY_VARIABLE = "GRPO_STUDY_URL"
"""The address of the studies' database, where a sweep names none."""


class Range(Section):
    """Numbers from `low` to `high`, for the samplers that search: `random` and `tpe`."""

    low: int | float
    """Smallest value."""
    high: int | float
    """Largest value."""
    log: bool = False
    """Search evenly in the logarithm."""
    step: int | float | None = Field(default=None, gt=0)
    """Only low, low + step, ...; null = every number (whole numbers where low and high are)."""

    @model_validator(mode="after")
    def _in_order(self) -> "Range":
        low, high, step = self.low, self.high, self.step
        faults = {
            f"step {step} is larger than from low {low} to high {high}, so nothing varies": step is not None
            and step > high - low,
            f"low {low} must be below high {high}": low >= high,
            f"low {low} must be above 0 with log": self.log and low <= 0,
            f"step {step} contradicts log; leave one out": self.log and step is not None,
        }
        if found := [fault for fault, is_there in faults.items() if is_there]:
            raise ValueError(found[0])
        return self

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int) and isinstance(self.step, int | None)


def _is_range(value: Any) -> str:
    return "range" if isinstance(value, dict | Range) else "values"


Axis = Annotated[
    Annotated[tuple[Any, ...], Field(min_length=1, strict=False), Tag("values")] | Annotated[Range, Tag("range")],
    Discriminator(_is_range),
]
"""The values of one key, or a range of them."""


class ObjectiveConfig(Section):
    """What makes one arm better than another: a figure of its runs, with a price or a bound on the drift if wanted."""

    metric: Text = "eval/heldout/greedy_accuracy"
    """Figure to maximise: of the final evaluation (`eval/heldout/...`), or of steps, as the mean of the last `last_steps`; of a
    probe (`kl/probe/...`) the last one in them."""
    kl_metric: Text = "kl/init/seq"
    """The drift that `kl_penalty` or `kl_bound` is about: its mean over the last `last_steps` steps, of a probe
    (`kl/probe/...`) the last one in them. A run whose last steps hold no such figure has none."""
    kl_penalty: float | None = Field(default=None, gt=0, le=1e9)
    """Subtracted per unit of `kl_metric`; null = the drift costs nothing."""
    kl_bound: float | None = Field(default=None, gt=0, le=1e9)
    """An arm whose mean drift exceeds it is never the best; null = no bound."""
    last_steps: Steps = LAST_STEPS
    """Steps at the end of a run whose figures say where it ended. Steps, not measurements: a figure that is measured every
    ten steps may be missing in them. `grpo compare` takes the default."""

    @property
    def is_of_evaluation(self) -> bool:
        """Whether the metric is one of the final evaluation."""
        return self.metric.startswith("eval/")

    @property
    def is_share(self) -> bool:
        """Whether it lies between 0 and 1."""
        found = find_metric(self.metric)
        return self.kl_penalty is None and found is not None and found.unit == "0..1"

    @property
    def name(self) -> str:
        """What people call it: `held-out accuracy`, `held-out pass@1`, `reward`; a metric without a name by its key."""
        known = NAMES.get(self.metric, self.metric.replace("eval/heldout/pass_at_", "held-out pass@"))
        return known if self.kl_penalty is None else f"{known} - {self.kl_penalty:g} x {self.kl_metric}"


class PrimaryConfig(Section):
    """The question as one contrast in the objective, or all contrasts of one knob."""

    knob: Text
    """One of the axes."""
    first: Any = None
    """A value of it; as `second` = all of its values are compared."""
    second: Any = None
    """The value that is compared with `first`."""

    @field_validator("first", "second")
    @classmethod
    def _as_axes_have_it(cls, level: Any) -> Any:
        return list(level) if isinstance(level, tuple) else level

    @property
    def levels(self) -> tuple[Any, Any] | None:
        """The two values; None where all are compared."""
        return None if self.first == self.second else (self.first, self.second)


class ClaimConfig(Section):
    """What is claimed of the question, and how it is decided: stated before the first run."""

    says: Text
    """The claim, a sentence."""
    source: Text
    """Where it is made, for example a paper and its number."""
    effect: float = Field(ge=-1e9, le=1e9)
    """The expected difference in the objective, `primary.second` minus `primary.first`, not within `margin`; 0 = that there is
    none."""
    margin: float = Field(gt=0, le=1e9)
    """The smallest difference that matters: within it, the two are equivalent."""
    limits: Text
    """What this setting cannot show."""


class BudgetConfig(Section):
    """When no further run begins; runs under way are finished."""

    hours: float | None = Field(default=None, gt=0, le=100_000)
    """Hours in which any of its runs was at work; null = no limit."""
    tokens: int | None = Field(default=None, ge=1, le=10**15)
    """Completion tokens generated by all its runs together; null = no limit."""


class PrunerConfig(Section):
    """Which runs are not worth finishing, judged on their journals against other arms' runs of the same seed."""

    reward: Literal["median", "successive_halving"] | None = None
    """`median`: below the median of the others at the same step. `successive_halving`: not among the best 1 in
    `reduction_factor` that reached the rung. null = rewards prune nothing."""
    kl_budget: float | None = Field(default=None, gt=0, le=1e9)
    """Pruned once the drift (`objective.kl_metric`) of the last `window` steps exceeds it: their mean, or the last probe in
    them; null = never."""
    first_step: Steps = 10
    """The first rung: nothing is pruned before this step."""
    every_steps: Steps = 10
    """Distance of the rungs of `median` and of `kl_budget`."""
    reduction_factor: int = Field(default=2, ge=2, le=1000)
    """Of `successive_halving`: each rung is so many times the one before, and 1 in so many continues."""
    min_arms: int = Field(default=4, ge=2, le=MOST_TRIALS)
    """Arms, this one included, that must have reached a rung before a reward is compared there."""
    window: Steps = 5
    """Rewards and drift are those of so many steps up to the rung."""

    @property
    def is_on(self) -> bool:
        """Whether it prunes at all."""
        return self.reward is not None or self.kl_budget is not None

    def budget_rungs(self, steps: int) -> range:
        """Return the steps at which the drift is compared with its budget, up to `steps`."""
        return range(self.first_step, steps + 1, self.every_steps)


class RunsConfig(Section):
    """Where the runs take place."""

    where: Literal["local", "deployment"] = "local"
    """`local`: processes of this machine. `deployment`: flow runs of a deployment, taken by the workers of its work pool."""
    deployment: Text = "grpo/train"
    """Deployment of the flow `grpo`; the one of the same work pool named `grpo/resume` resumes interrupted runs."""
    share: bool = False
    """Whether runs of a grid on this machine that differ in when the reference is synchronised, and so not before the first
    sync, have their beginning in common: one runs it, and the others are forked from it. No figure changes."""
    concurrency: int = Field(default=1, ge=1, le=4096)
    """Runs at a time. Left out, runs on this machine's GPUs are as many as can have GPUs of their own. Of a
    deployment: runs handed out at a time, of which its work pool's limits take what they take."""


class ForkConfig(Section):
    """The run of which every run of a sweep is a fork."""

    run: Text
    """Its folder."""
    at: Steps
    """The step after which they go on, each with its own values."""


class SweepConfig(Section):
    """One sweep: arms that differ in the axes alone, each run once per seed."""

    question: str = Field(default="", max_length=10_000)
    """What the sweep is to answer, in words; shown first in its report."""
    primary: PrimaryConfig | None = None
    """The question as a contrast, chosen before the first run: its answer stands first, and 60 % of the chance of a false
    claim are its own; what else the report says is exploratory. null = all of it is."""
    claim: ClaimConfig | None = None
    """What is claimed of the question `primary`, which needs two values; the report gives the verdict. null = nothing."""
    base: Text
    """Preset or file of which every arm is a variation; with `fork`, that run's configuration."""
    fork: ForkConfig | None = None
    """A run that all runs are forked from; null = they begin with the first step."""
    from_step: Mapping[str, Steps] = Field(default={})
    """{key.path: step} of axes whose values hold after a step only, the same for all: up to there all runs have the base's
    value, which must be one of the axis, and the others are forked from that one's run. {} = from the first step on."""
    overrides: PlainValues = Field(default={})
    """Keys of the base that are changed for all arms: {key.path: value}."""
    settings: Mapping[Text, PlainValues] = Field(default={})
    """{name: {key.path: value}}: whole settings by name, for what differs in several keys at once; an axis called `setting`."""
    axes: Mapping[str, Axis] = Field(min_length=1)
    """{key.path: values}; a range {low, high, log, step} where a sampler searches."""
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1, max_length=1000)
    """`training.seed` of the runs of each arm: prompt order and sampling, the same for all arms."""
    hold: Literal["prompts", "completions", "tokens"] | None = None
    """What stays the same where `rollout.group_size` is swept: prompts a step; completions a step (fewer prompts for larger
    groups); or, beside completions a step, tokens of the whole run (`training.max_tokens`)."""
    sampler: Literal["grid", "random", "tpe"] = "grid"
    """`grid`: every combination. `random`, `tpe` (tree-structured Parzen estimator): `trials` arms."""
    sampler_seed: int = Field(default=0, ge=0)
    """Seed of `random` and `tpe`; each suggestion depends on it, the number of the trial, and the results so far."""
    trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)
    """Arms that `random` or `tpe` tries."""
    objective: ObjectiveConfig = ObjectiveConfig()
    budget: BudgetConfig = BudgetConfig()
    pruner: PrunerConfig = PrunerConfig()
    runs: RunsConfig = RunsConfig()
    failed_runs_allowed: int = Field(default=0, ge=0, le=1_000_000)
    """The sweep ends once more runs than this have failed."""
    study: StudyUrl | None = None
    """Optuna storage: null = GRPO_STUDY_URL, else SQLite in the sweep's folder. PostgreSQL: `postgresql+psycopg://...`; one
    with a password is refused and belongs into GRPO_STUDY_URL."""

    @model_validator(mode="before")
    @classmethod
    def _base_of_fork(cls, values: Any) -> Any:
        fork = values.get("fork") if isinstance(values, dict) else None
        if not (isinstance(fork, dict) and isinstance(run := fork.get("run"), str)):
            return values
        return {"base": f"{run}/config.json", **values, "fork": {**fork, "run": str(Path(run).resolve())}}

    @model_validator(mode="before")
    @classmethod
    def _axis_of_settings(cls, values: Any) -> Any:
        settings, axes = (values.get(key) or {} for key in ("settings", "axes")) if isinstance(values, dict) else ({}, {})
        if not (settings and isinstance(settings, dict) and isinstance(axes, dict)):
            return values
        return {**values, "axes": {SETTING: list(settings), **axes}}

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise ValueError("seeds must differ from each other and be at least 0")
        return seeds

    @property
    def knobs(self) -> tuple[str, ...]:
        """The swept keys."""
        return tuple(self.axes)

    @property
    def changed(self) -> tuple[str, ...]:
        """The keys in which runs differ, but for the seed."""
        named = (key for values in self.settings.values() for key in values)
        return tuple(dict.fromkeys((*named, *(key for key in self.axes if key != SETTING))))
