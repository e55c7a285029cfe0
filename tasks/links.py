"""Addresses of pages of MLflow and Prefect, as they are printed, stored and followed.

MLflow opens an experiment on its "GenAI" page unless the address names the other kind, whatever the experiment's own tag says.
"""

from urllib.parse import urlencode, urlsplit, urlunsplit

from grpo_core.text import kept_uri
from tasks.process.context import prefect_is_embedded

LOCAL_UI = "http://127.0.0.1:5000"
"""The address that `mlflow ui` prints."""
_KIND = {"workflowType": "machine_learning"}


def ui_address(uri: str) -> str | None:
    """Return the address of MLflow's pages; None for a store, which has none until `mlflow ui` shows it.

    >>> ui_address("https://host/mlflow/"), ui_address("http://me:secret@host:5000"), ui_address("sqlite:////tmp/mlflow.db")
    ('https://host/mlflow', 'http://host:5000', None)
    """
    if not uri.lower().startswith(("http://", "https://")):
        return None
    parts = urlsplit(kept_uri(uri))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def mlflow_home_page(base: str) -> str:
    """Return the address of the list of experiments.

    >>> mlflow_home_page("http://host")
    'http://host/#/experiments?workflowType=machine_learning'
    """
    return f"{base}/#/experiments?{urlencode(_KIND)}"


def mlflow_run_page(base: str, experiment_id: str, run_id: str) -> str:
    """Return the address of one run's page.

    >>> mlflow_run_page("http://host", "1", "abc")
    'http://host/#/experiments/1/runs/abc?workflowType=machine_learning'
    """
    return f"{base}/#/experiments/{experiment_id}/runs/{run_id}?{urlencode(_KIND)}"


def mlflow_charts_page(base: str, experiment_id: str, view: str = "") -> str:
    """Return the address of the charts of all runs of an experiment.

    Args:
        base: of MLflow's pages.
        experiment_id: of the experiment.
        view: id of the saved view to open; empty = MLflow's own arrangement. MLflow refuses an id that it does not know.

    >>> mlflow_charts_page("http://host", "1", "grpo")
    'http://host/#/experiments/1/runs?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey=grpo'
    """
    share = {"viewStateShareKey": view} if view else {}
    return f"{base}/#/experiments/{experiment_id}/runs?{urlencode({**_KIND, 'compareRunsMode': 'CHART', **share})}"


def prefect_run_page() -> str:
    """Return the address of this flow run's page; empty where there is none, or its server ends with this command."""
    from prefect.runtime import flow_run
    from prefect.utilities.urls import url_for

    if not flow_run.id or prefect_is_embedded():
        return ""
    return kept_uri(url_for("flow-run", obj_id=flow_run.id) or "")
