"""What MLflow's pages say about a run before its first figure: name, description, tags, parameters."""

import shlex
from pathlib import Path
from typing import Any

from grpo_core.config import Origin, RunConfig
from grpo_core.config.origin import flatten
from grpo_core.plain_text import for_code, for_markdown
from grpo_core.redaction import kept_uri
from tasks.process.context import prefect_is_embedded

PARENT = "mlflow.parentRunId"
"""The tag by which MLflow nests a run below another."""
NOTE = "mlflow.note.content"
"""The tag that MLflow shows as the description."""
STOP_TAG = "grpo.stop"
"""Set on a running MLflow run, by hand or by a program, it ends the training after its step; its value is the reason."""


def describe_run(config: RunConfig, origin: Origin, run_path: Path) -> str:
    """Return the description, in Markdown: what differs from the preset, how to see more, how to stop."""
    rows = [
        f"| {for_code(key, in_table=True)} | {_cell(before)} | {_cell(now)} |" for key, (before, now) in origin.changes.items()
    ]
    table = ["| key | preset | this run |", "|---|---|---|", *rows] if rows else ["Exactly as the preset says."]
    lines = [
        f"**{for_markdown(origin.preset)}**: {for_markdown(config.model.source)} on {for_markdown(config.data.source)}",
        "",
        *table,
        "",
        f"Where it is: {for_code(f'grpo status {shlex.quote(str(run_path.resolve()))}')}. "
        f"A training ends after its step when the tag `{STOP_TAG}` is set here.",
    ]
    return "\n".join(lines)


def start_tags(config: RunConfig, origin: Origin, run_path: Path) -> dict[str, str]:
    """Return the tags with which a run begins."""
    from prefect.runtime import flow_run
    from prefect.utilities.urls import url_for

    flow_run_id = str(flow_run.id or "")
    shown = flow_run_id and not prefect_is_embedded()  # an embedded server is gone when somebody follows the link
    return {
        NOTE: describe_run(config, origin, run_path),
        "preset": origin.preset,
        "seed": str(config.training.seed),
        "run_dir": str(run_path.resolve()),
        "prefect.flow_run_id": flow_run_id,
        "prefect.flow_run_url": kept_uri((url_for("flow-run", obj_id=flow_run_id) if shown else None) or ""),
        "mlflow.source.name": "grpo",
        **({PARENT: config.tracking.parent} if config.tracking.parent else {}),
        **config.tracking.labels,
    }


def params(config: RunConfig) -> dict[str, str]:
    """Return the flattened configuration and the labels; the compare page and parallel coordinates use them as they are."""
    return {**config.tracking.labels, **{key: str(value) for key, value in flatten(config).items() if not _is_label(key)}}


def _is_label(key: str) -> bool:
    return key == "tracking.labels" or key.startswith("tracking.labels.")


def _cell(value: Any) -> str:
    return "null" if value is None else for_markdown(str(value))
