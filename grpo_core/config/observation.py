"""Keys of what is measured beside the training: probe, evaluation, monitor, tracking."""

from typing import Annotated, Literal

from pydantic import Field

from grpo_core.config.section import MOST_ROWS, Section, Steps, Text, Title, TrackingUri


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
    k: tuple[int, ...] = Field(default=(1, 4), max_length=1000)
    """The k of pass@k; each at most `samples`."""
    every_steps: Steps | None = None
    """Also evaluate (greedy) during training, after every so many steps; null = before and after only."""
    every_num_prompts: int = Field(default=64, ge=1, le=MOST_ROWS)
    """Held-out prompts of the evaluations during training."""


class RuleConfig(Section):
    """One thing that the monitor watches."""

    kind: Literal["kl_budget", "sampler_mismatch", "non_finite", "stalled"]
    """`kl_budget`: `metric` above `bound`; `sampler_mismatch`: `kl/sampler/k3` above it, so sampler and trainer have other
    probabilities; `non_finite`: a figure is NaN or infinite; `stalled`: `bound` seconds of silence."""
    metric: Text | None = None
    """Metric of a `kl_budget` rule: a key that starts with `kl/`."""
    bound: float | None = Field(default=None, gt=0, le=1e9)
    """`kl_budget` and `sampler_mismatch`: nats a token; `stalled`: seconds. `non_finite` takes none."""
    action: Literal["warn", "stop"] = "warn"
    """`stop` finishes the step under way, checkpoints and ends the run."""

    @property
    def watched(self) -> str | None:
        """The metric that must stay below the bound; None for rules about no single one."""
        return "kl/sampler/k3" if self.kind == "sampler_mismatch" else self.metric


class MonitorConfig(Section):
    """Rules that are checked at every record of the journal."""

    rules: Annotated[tuple[RuleConfig, ...], Field(max_length=100)] = (
        RuleConfig(kind="non_finite", action="stop"),
        RuleConfig(kind="stalled", bound=600.0, action="warn"),
        RuleConfig(kind="sampler_mismatch", bound=0.01, action="warn"),
    )
    """Each breach is an alert in MLflow and Prefect with the bound, the value and the step."""


class TrackingConfig(Section):
    """Where MLflow is."""

    uri: TrackingUri | None = None
    """Tracking store or server; null = MLFLOW_TRACKING_URI, else SQLite in the folder of the run directories. A password
    is refused: of a server it goes into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN, of a
    database into MLFLOW_TRACKING_URI, for which `postgresql://***@host/db` stands."""
    experiment: Title = "grpo"
    """MLflow experiment."""
    log_policy: bool = True
    """Keep the final policy's weights as an MLflow artifact; off = only their place and digest."""
    run_name: Title | None = None
    """Name of the run; null = the preset, beta, group size, sync steps, seed, and what else was changed."""
    parent: Text | None = None
    """MLflow run id of the sweep that the run belongs to; null = it stands alone."""
    labels: dict[str, str] = Field(default={})
    """Tags and parameters of the MLflow run that group it with others, such as sweep and arm."""
    git_diff: bool = True
    """Keep the uncommitted changes of the code in provenance.json, also in MLflow; off = their digest alone."""
