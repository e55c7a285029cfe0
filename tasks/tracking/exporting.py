"""The export of a run's policy, as the command and the flow make it: find the run, write the folder, register it in MLflow.

There it is a model of the run that it is of, and a version of a registered model. Its description (`MLmodel`) is the one of
MLflow's `transformers` flavour, written here. `mlflow.transformers.log_model` (3.17) fails on a folder with transformers 5.23,
whose table of pipelines holds names in place of classes; given a loaded model, it writes other files than those whose digests
the manifest has, and it takes no adapter without its base.
An adapter alone, and a model with Python files, have a description that only names their files: they are downloaded.
"""

import json
import platform
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.config.section import refuse_credentials
from grpo_core.errors import ConfigError, TrackingError, raised_as, shown
from grpo_core.export.card import TASK, hub_id, public_source
from grpo_core.export.choice import EXPORTS, ExportWish
from grpo_core.export.policy_folder import MANIFEST_FILE, Exported, export_policy
from grpo_core.machine.disk import folder_bytes, sha256_of
from grpo_core.run.folder import RunDir
from grpo_core.run.provenance import installed_versions
from grpo_core.run.resuming import path_argument
from grpo_core.text import for_markdown
from tasks.deployment_limits import check_root
from tasks.process.prefect_outage import prefect_may_be_away
from tasks.run.progress import say
from tasks.run.reporting import markdown_report
from tasks.tracking.fetch import find_folder, is_mlflow_run
from tasks.tracking.store import TrackedRun, make_client, own_tracked

MODEL_FOLDER = "model"
DIGEST_TAG = "grpo.export"
"""SHA-256 of an export's manifest: by it a version is found again."""
VERSIONS_TAG = "mlflow.modelVersions"
"""Of a logged model: MLflow's pages link it to its registered versions by it."""
REQUIRED = ("mlflow", "transformers", "torch", "accelerate", "safetensors", "peft")


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A version of a registered model."""

    name: str
    version: str
    is_pipeline: bool
    """Whether MLflow loads it; else its files are downloaded."""
    was_there: bool
    """Whether the same export of the same run had been registered before."""

    def __str__(self) -> str:
        """Return it as one fact."""
        return f"registered: {self.name}, version {self.version}{' (as before)' if self.was_there else ''}"

    @property
    def load_command(self) -> str:
        """The Python expression that loads it."""
        call = "mlflow.transformers.load_model" if self.is_pipeline else "mlflow.artifacts.download_artifacts"
        return f"{call}('models:/{self.name}/{self.version}')"


@dataclass(frozen=True, kw_only=True)
class ExportSummary:
    """What came of an export."""

    title: str
    folder: Path
    facts: tuple[str, ...]
    """What was exported, one line a fact."""
    notes: tuple[str, ...]
    """What its user has to know."""
    places: tuple[tuple[str, str], ...]
    """Where to look, each with its label."""
    registered: Registered | None


@task(name="export", cache_policy=NO_CACHE)
def export_run(run: str, wish: ExportWish, folder: Path | None, register_as: str | None) -> ExportSummary:
    """Export a policy of a run, and register it where a name is given.

    Args:
        run: a RUN_DIR, or the id of an MLflow run whose folder is on this machine.
        wish: which checkpoint, in which form.
        folder: of the export; None = a new one in `runs/exports/`.
        register_as: name of the registered model; None = none.

    Raises:
        ConfigError: what is asked for contradicts the run, or the name cannot be that of a registered model.
        ModelError, JournalError: as `export_policy`.
        FolderError: the folder is not an export of ours, or a deployed flow may not write there.
        TrackingError: MLflow does not hold the run, or its folder is not here (nothing is exported then), or MLflow does not
            take the export, which stays.
    """
    check_root(folder or EXPORTS, "to")
    path = find_folder(run) if is_mlflow_run(run) else Path(run)
    if path is None:
        raise TrackingError(
            f"run {run}: its folder, which holds the checkpoints, is not on this machine; MLflow has its final policy as the "
            "artifact `policy`, unless tracking.log_policy was off"
        )
    run_dir = RunDir(path)
    tracked = None if register_as is None else _find_tracked(run_dir, register_as)
    exported = export_policy(run_dir, wish, folder, say)
    facts, registered = exported.facts, None
    places = [("export", str(exported.folder)), ("card", str(exported.folder / "README.md"))]
    if tracked is not None and register_as is not None:
        registered = register_version(exported, tracked, register_as)
        facts = [*facts, str(registered)]
        places += [("load", registered.load_command), *tracked.places]
    return ExportSummary(
        title=exported.card.title,
        folder=exported.folder,
        facts=tuple(facts),
        notes=exported.notes,
        places=tuple(places),
        registered=registered,
    )


def show_export(summary: ExportSummary) -> None:
    """Keep what was exported as an artifact of the flow run."""
    notes = [f"- {for_markdown(note)}" for note in summary.notes]
    where = " · ".join(f"{label} {for_markdown(place)}" for label, place in summary.places)
    markdown = markdown_report(summary.title, where, summary.facts, {"To be known": notes} if notes else {})
    with prefect_may_be_away():
        create_markdown_artifact(markdown, key="export-report", description=for_markdown(summary.title))


def _find_tracked(run_dir: RunDir, name: str) -> TrackedRun:
    """Return the MLflow run of a run, at the address where it is now; whatever is refused is, before anything is written."""
    refuse_credentials("--register", name)
    if not name.strip() or any(character in name for character in "/:'") or not name.isprintable() or len(name) > 256:
        raise ConfigError(f"--register {shown(name)}: the name of a registered model is not empty and holds no / : or '")
    known = own_tracked(run_dir)
    what = (
        f"run dir {run_dir.path}: its MLflow run {known.run_id} cannot be used ({{cause}}); nothing was exported. Start its "
        "server, set MLFLOW_TRACKING_URI to where it is, or leave out --register; where its store was replaced, `grpo track "
        f"{path_argument(run_dir.path)}` logs it to the new one"
    )
    with raised_as(TrackingError, what, Exception):  # mlflow raises unrelated types for each store
        if make_client(known.uri, create=False).get_run(known.run_id).info.lifecycle_stage == "deleted":
            raise LookupError("it was deleted")
    return known


def register_version(exported: Exported, tracked: TrackedRun, name: str) -> Registered:
    """Log an export as a model of its MLflow run and register it; one that is registered already stays the only one.

    Args:
        exported: the export.
        tracked: the MLflow run of its run, which stays as it is: no other is made.
        name: of the registered model, made where there is none.

    Raises:
        TrackingError: MLflow does not take it.
    """
    what = (
        f"--register {name}: the export cannot be registered in MLflow at {tracked.uri} ({{cause}}); the export is whole: "
        f"{path_argument(exported.folder)}; the same command registers it when MLflow answers"
    )
    with raised_as(TrackingError, what, Exception):  # mlflow raises unrelated types for each store
        client, tags = make_client(tracked.uri, create=False), _tags(exported)
        versions = client.search_model_versions(f"name = '{name}' AND run_id = '{tracked.run_id}'")
        known = next((one for one in versions if one.tags.get(DIGEST_TAG) == tags[DIGEST_TAG]), None)
        version = known or _add_version(client, exported, tracked, name, tags)
    return Registered(name=name, version=str(version.version), is_pipeline=is_pipeline(exported), was_there=known is not None)


def _log_model(client: Any, exported: Exported, tracked: TrackedRun, tags: Mapping[str, str]) -> Any:
    from mlflow.entities import LoggedModelOutput

    plan = exported.plan
    logged = client.create_logged_model(
        tracked.experiment_id, name=f"step_{plan.step:06d}-{plan.form}", source_run_id=tracked.run_id, tags=dict(tags)
    )
    with tempfile.TemporaryDirectory(prefix="grpo-register-") as folder:
        _describe(exported, Path(folder), logged, tracked.run_id)
        client.log_model_artifacts(logged.model_id, folder)
    client.log_model_artifacts(logged.model_id, str(exported.folder), MODEL_FOLDER)
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(tracked.run_id, [LoggedModelOutput(logged.model_id, step=plan.step)])
    return logged


def _add_version(client: Any, exported: Exported, tracked: TrackedRun, name: str, tags: Mapping[str, str]) -> Any:
    from mlflow.exceptions import MlflowException

    # The model of an attempt that could upload this export and not register it is used again.
    wanted = f"source_run_id = '{tracked.run_id}' AND tags.`{DIGEST_TAG}` = '{tags[DIGEST_TAG]}'"
    models = client.search_logged_models(experiment_ids=[tracked.experiment_id], filter_string=wanted)
    ready = next((model for model in models if str(model.status) == "READY"), None)
    logged = ready or _log_model(client, exported, tracked, tags)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    version = client.create_model_version(
        name,
        source=logged.artifact_location,  # `models:/<id>` is looked up in the store of MLflow's global state
        run_id=tracked.run_id,
        model_id=logged.model_id,
        tags=tags,
        description=for_markdown(exported.card.title),
    )
    versions = [{"name": name, "version": int(version.version)}]
    client.set_logged_model_tags(logged.model_id, {VERSIONS_TAG: json.dumps(versions)})
    return version


def _describe(exported: Exported, folder: Path, logged: Any, run_id: str) -> None:
    """Write what MLflow wants beside the export: its description of a model, and the tokenizer as a part of its own.

    As `mlflow.transformers.save_model` does, with transformers' automatic classes: by their names no code of a model is run,
    and a tokenizer is found whatever the installed transformers calls its class.
    """
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    plan, versions = exported.plan, installed_versions(REQUIRED)
    model = Model(artifact_path=logged.artifact_location, run_id=run_id, model_id=logged.model_id)
    model.model_size_bytes = folder_bytes(exported.folder)
    if is_pipeline(exported):
        text = Schema([ColSpec(DataType.string)])
        model.signature = ModelSignature(inputs=text, outputs=text)
        model.add_flavor(
            "transformers",
            transformers_version=versions["transformers"],
            code=None,
            task=TASK,
            instance_type="TextGenerationPipeline",
            torch_dtype=f"torch.{plan.dtype}",
            pipeline_model_type="AutoModelForCausalLM",
            source_model_name=hub_id(plan.config.model.source) or public_source(plan.config.model.source),
            model_binary=MODEL_FOLDER,
            components=["tokenizer"],
            tokenizer_type="AutoTokenizer",
        )
        model.add_flavor("python_function", loader_module="mlflow.transformers", python_version=platform.python_version())
        (folder / "components" / "tokenizer").mkdir(parents=True)
        for file in exported.folder.iterdir():
            if file.suffix in (".json", ".jinja", ".txt", ".model"):
                shutil.copy(file, folder / "components" / "tokenizer")
    else:
        model.add_flavor("grpo_export", data=MODEL_FOLDER, form=plan.form)
    requirements = sorted(f"{name}=={version.partition('+')[0]}" for name, version in versions.items())
    (folder / "requirements.txt").write_text("\n".join(requirements) + "\n")
    model.save(str(folder / "MLmodel"))


def is_pipeline(exported: Exported) -> bool:
    """Return whether MLflow may load an export as a pipeline.

    Not an adapter, whose base is elsewhere; nor a model with Python files: MLflow would run them without being told to.
    """
    return exported.plan.form == "merged" and not exported.plan.config.model.trust_remote_code


def _tags(exported: Exported) -> dict[str, str]:
    """Return what a version is found and chosen by: step, form, figures with their intervals."""
    plan, card = exported.plan, exported.card
    about = {"step": str(plan.step), "form": plan.form, "dtype": plan.dtype}
    figures = {one.key: one.policy for one in card.evaluations} | {f"base/{one.key}": one.base for one in card.evaluations}
    known = {key: str(value) for key, value in figures.items() if value is not None} | {one.key: str(one) for one in card.drift}
    return {**about, DIGEST_TAG: sha256_of(exported.folder / MANIFEST_FILE), **card.digests, **known}
