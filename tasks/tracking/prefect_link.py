"""Links from a flow run's page in Prefect to MLflow, added when the run begins; the MLflow run's description links back."""

from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

from grpo_core.plain_text import for_link, for_markdown
from tasks.away import prefect_may_be_away
from tasks.process.context import prefect_is_embedded
from tasks.tracking.store import TrackedRun

KEY = "mlflow"


def link_mlflow(tracked: TrackedRun) -> None:
    """Add an artifact with links to the MLflow run and to the charts of its experiment.

    Nothing is added where a link would lead nowhere: to a store without a server, or from an embedded Prefect.
    """
    if not tracked.has_pages or not flow_run.id or prefect_is_embedded():
        return
    links = {"this run in MLflow": tracked.address, "charts of all runs of the experiment": tracked.charts_address}
    text = "\n".join(f"- [{label}]({for_link(address)})" for label, address in links.items())
    with prefect_may_be_away():
        create_markdown_artifact(text, key=KEY, description=f"MLflow: {for_markdown(tracked.name)}")
