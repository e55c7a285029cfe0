"""How MLflow's charts of an experiment are arranged: what a GRPO experiment asks first is on top, the rest folded by area.

The dictionaries are MLflow's own (3.17), as its page writes them when somebody saves a view.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.config.loading import KNOBS
from grpo_core.config.names import reward_name
from grpo_core.evaluation.results import HELD_OUT, HELD_OUT_SAMPLE, set_name
from grpo_core.metrics import REGISTRY
from grpo_core.sweep.measures import MEASURES

ACCURACY, SAMPLE_ACCURACY = f"eval/{HELD_OUT}/greedy_accuracy", f"eval/{HELD_OUT_SAMPLE}/greedy_accuracy"
EXACT_DRIFT, EXACT_KL = "kl/probe/full_init", "kl/probe/full"
OBJECTIVE = "sweep/objective"
PINNED = (
    ("kl/ref/drift",),
    ("kl/init/drift",),
    (EXACT_DRIFT, EXACT_KL),
    ("ref/synced",),
    ("reward/mean",),
    (ACCURACY, SAMPLE_ACCURACY),
)
"""Metrics of the charts on top; MLflow shows them as the titles."""
TOP, SWEEP = "GRPO", "sweep"
"""Sections: what is pinned, and the results of a sweep's runs."""
COLUMNS = (
    *(f"params.`{key}`" for key in KNOBS.values()),
    *(f"metrics.`{key}`" for key in (ACCURACY, EXACT_DRIFT, "reward/mean")),
)
NAME_COLUMN, NAME_PIXELS = "attributes.`Run Name`", 280
"""Wide enough for β, G, sync and seed."""
MLFLOW_SECTIONS = ("Model metrics", "System metrics")
"""MLflow's own names for metrics without an area, and for those below `system/`."""


def own_metrics(config: RunConfig) -> frozenset[str]:
    """Return the metrics of a run whose names depend on its configuration: of its rewards and its evaluation sets."""
    rewards = {
        f"reward/{reward_name(reward.fn)}/{of}"
        for reward in config.rewards
        for of in ("mean", "std", "unscorable_frac", "timeout_frac")
    }
    figures = ["greedy_accuracy", "greedy_score", "completion_tokens", *(f"pass_at_{k}" for k in config.evaluation.k)]
    sets = (HELD_OUT, HELD_OUT_SAMPLE, set_name(config.data.source))
    return frozenset(rewards | {f"eval/{name}/{figure}" for name in sets for figure in figures})


def arrangement(own: Iterable[str], search: str, params: Sequence[str]) -> dict[str, Any]:
    """Return the state of the saved view: columns of the table, charts, and sections of charts.

    Args:
        own: metrics that the registry knows as patterns only; they join the others of their area.
        search: filter of a sweep's runs, whose results are open then; empty = all runs.
        params: of the parallel coordinates.
    """
    pinned = {metrics[0] for metrics in PINNED}
    known = [metric.key for metric in REGISTRY if "<" not in metric.key]
    keys = [key for key in (*known, *sorted(own)) if key not in pinned]
    areas = dict.fromkeys(key.partition("/")[0] for key in keys)
    figures = [f"sweep/{key}" for key, measure in MEASURES.items() if measure.in_mlflow]
    charts = [
        *(_line(f"top-{number}", TOP, metrics) for number, metrics in enumerate(PINNED)),
        _parallel(params),
        *(_chart("BAR", f"{SWEEP}-{number}", SWEEP, key) for number, key in enumerate(figures)),
        *(_line(f"all-{number}", key.partition("/")[0], (key,)) for number, key in enumerate(keys)),
    ]
    first = [_section(TOP, True), *([_section(SWEEP, True)] if search else [])]
    folded = [*areas, *([] if search else [SWEEP]), *MLFLOW_SECTIONS]
    return {
        "selectedColumns": list(COLUMNS),
        "columnOrder": [NAME_COLUMN, "runDateAndNestInfo", *COLUMNS],
        "columnWidths": {NAME_COLUMN: NAME_PIXELS},
        "compareRunCharts": charts,
        "compareRunSections": [*first, *(_section(area, False) for area in folded)],
        "isAccordionReordered": True,  # else MLflow sorts the sections by name
        "runsHiddenMode": "FIRST_20_RUNS",
        "searchFilter": search,
        # Sorted by time, MLflow folds a sweep's runs below their parent, and draws none that is folded.
        **({"orderByKey": f"metrics.`{OBJECTIVE}`", "orderByAsc": False} if search else {}),
    }


def _section(name: str, is_open: bool) -> dict[str, Any]:
    return {
        "uuid": f"grpo-{name}",
        "name": name,
        "display": is_open,
        "isReordered": True,
        "deleted": False,
        "isGenerated": True,
    }


def _chart(kind: str, uuid: str, section: str, metric: str) -> dict[str, Any]:
    return {
        "uuid": f"grpo-{uuid}",
        "type": kind,
        "metricSectionId": f"grpo-{section}",
        "displayName": metric,
        "metricKey": metric,
        "runsCountToCompare": 20,
        "deleted": False,
        "isGenerated": True,
    }


def _line(uuid: str, section: str, metrics: tuple[str, ...]) -> dict[str, Any]:
    return {
        **_chart("LINE", uuid, section, metrics[0]),
        "selectedMetricKeys": list(metrics),
        "xAxisKey": "step",
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
        "lineSmoothness": 0,
        "scaleType": "linear",
        "xAxisScaleType": "linear",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "range": {},
        "ignoreOutliers": False,
    }


def _parallel(params: Sequence[str]) -> dict[str, Any]:
    """Return parallel coordinates; MLflow hides them as long as no run has an objective."""
    return {
        "uuid": "grpo-parallel",
        "type": "PARALLEL",
        "metricSectionId": f"grpo-{SWEEP}",
        "displayName": "settings and objective",
        "selectedParams": list(params),
        "selectedMetrics": [OBJECTIVE],
        "showAllRuns": False,
        "runsCountToCompare": 20,
        "deleted": False,
        "isGenerated": False,
    }
