"""Keys of what is measured beside the training: probe, evaluation, tracking; the monitor's are in `rules.py`."""

from typing import Annotated

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
    """MLflow experiment."""
    log_policy: bool = True
    """Keep the final policy's weights as an MLflow artifact; off = only their place and digest."""
    run_name: Title | None = None
    """Name of the run; null = the preset, beta, group size, sync steps, seed, and what else was changed."""
    parent: Text | None = None
    """MLflow run id of the sweep that the run belongs to; null = it stands alone."""
    labels: dict[str, str] = Field(default={})
    """Tags and parameters of the MLflow run that group it with others, such as sweep and arm. A tag that
    this project or MLflow sets, or a key of the configuration, is refused."""
    git_diff: bool = True
    """Keep the uncommitted changes of the code in provenance.json, also in MLflow; off = their digest alone."""
