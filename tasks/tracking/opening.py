"""The MLflow run of a training: a new one, or the one that it had before it was interrupted."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig, run_name
from grpo_core.errors import TrackingError
from grpo_core.machine.jsonfile import read_json, write_json
from grpo_core.run.folder import RunDir
from tasks.tracking.description import STOP_TAG, params, start_tags
from tasks.tracking.store import TrackedRun, make_client


def open_new(run_dir: RunDir, uri: str) -> TrackedRun:
    """Return a new MLflow run that holds the configuration."""
    config, origin, client = run_dir.read_config(), run_dir.read_origin(), make_client(uri)
    name = config.tracking.run_name or run_name(config, origin)
    experiment_id = find_experiment(client, uri, config.tracking.experiment, run_dir.path)
    run = client.create_run(experiment_id, run_name=name, tags=start_tags(config, origin, run_dir.path))
    tracked = TrackedRun(uri=uri, experiment_id=experiment_id, run_id=run.info.run_id, name=name)
    write_json(
        run_dir.tracking_file, asdict(tracked), private=True
    )  # at once: whoever resumes a run that dies here finds this one
    _log_params(client, tracked, config)
    return tracked


def _log_params(client: Any, tracked: TrackedRun, config: RunConfig) -> None:
    from mlflow.entities import Param

    client.log_batch(tracked.run_id, params=[Param(key, value) for key, value in params(config).items()])


def reopen(run_dir: RunDir, known: TrackedRun, addresses: Sequence[str]) -> TrackedRun | None:
    """Return the MLflow run of a resumed training, running again; None where it has none that could be written to.

    It is looked for at each address; one that does not answer is passed over where another one has the run.
    """
    from mlflow.exceptions import MlflowException

    failure: Exception | None = None
    for uri in addresses:
        try:
            client = make_client(uri)
            run = client.get_run(known.run_id)
        except TrackingError as error:  # a password that is no longer in the environment
            failure = failure or error
            continue
        except MlflowException as error:
            failure = failure if error.error_code == "RESOURCE_DOES_NOT_EXIST" else failure or error
            continue
        if run.info.lifecycle_stage == "deleted":
            return None
        tracked = replace(known, uri=uri)
        if asdict(tracked) != read_json(run_dir.tracking_file):  # also where an earlier version has kept a password
            write_json(run_dir.tracking_file, asdict(tracked), private=True)
        client.update_run(tracked.run_id, status="RUNNING")
        _log_params(client, tracked, run_dir.read_config())  # the attempt before may have died before it did
        if STOP_TAG in run.data.tags:  # it has ended the training before; whoever resumes it wants it to continue
            client.delete_tag(tracked.run_id, STOP_TAG)
        return tracked
    if failure is not None:
        raise failure
    return None


def find_experiment(client: Any, uri: str, name: str, run_path: Path) -> str:
    """Return the id of an experiment, made where there is none; artifacts of a local store lie beside the run dirs."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    local = uri.startswith("sqlite")
    location = (run_path.resolve().parent / "mlartifacts").as_uri() if local else None
    # Without a kind the UI guesses, and shows a training as an evaluation of prompts.
    tags = {"mlflow.experimentKind": "custom_model_development"}
    try:
        return str(client.create_experiment(name, artifact_location=location, tags=tags))
    except MlflowException:
        found = client.get_experiment_by_name(name)  # of runs that start together, another one was faster
        if found is None:
            raise
        return str(found.experiment_id)
