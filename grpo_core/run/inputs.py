"""What a run is made with, noted before it starts, and compared with what it was made with when it is resumed or repeated."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.errors import ModelError, listed
from grpo_core.policy.lora.targets import START
from grpo_core.policy.saved import stored_initial
from grpo_core.policy.sources.weight_files import weights_digest
from grpo_core.run.alerts import add_alert, monitor_alerts
from grpo_core.run.folder import RunDir
from grpo_core.run.provenance import collect_provenance, environment_differences, write_provenance
from grpo_core.run.start_weights import (
    BASE,
    DIGESTS,
    FOLDERS,
    StartWeights,
    config_here,
    other_weights,
    require_base,
    sources_of,
    start_folders,
    start_weights,
    weights_here,
    where_it_was,
)


def note_inputs(
    run_dir: RunDir,
    data_digest: str,
    model: Path,
    report: Callable[[str], None],
    digest: Callable[[Path], str] = weights_digest,
) -> None:
    """Write provenance.json of a run that starts; of one that is resumed or repeated, report what differs from its first.

    Args:
        run_dir: with its configuration.
        data_digest: of its frozen prompts.
        model: folder of its model.
        report: takes one line a difference.
        digest: of the weights in a folder.

    Raises:
        ModelError: a resumed or repeated run would begin with another initial policy, or the adapter with which a run begins
            was trained on another base.
    """
    config, is_resumed = config_here(run_dir), run_dir.provenance_file.exists()
    found = _found(run_dir, config, model, digest, report)
    first = run_dir if is_resumed else RunDir(run_dir.original)
    earlier: Mapping[str, Any] = first.read_provenance()
    if earlier:
        _refuse_other_weights(earlier, first.read_config(), run_dir.read_config(), found)
    require_base(config, model, digest)
    provenance = collect_provenance(run_dir.read_config().model_dump(mode="json"), data_digest, found.facts())
    if earlier:
        known = {raised.text for raised in monitor_alerts(run_dir)}
        for difference in environment_differences(earlier, provenance):
            report(f"environment: {difference}")
            alert = f"resumed in another environment: {difference}"
            if is_resumed and alert not in known:
                add_alert(run_dir, 0, alert)
    if not is_resumed:
        write_provenance({**provenance, FOLDERS: start_folders(config)}, run_dir.provenance_file)


def _found(
    run_dir: RunDir, config: RunConfig, model: Path, digest: Callable[[Path], str], report: Callable[[str], None]
) -> StartWeights:
    """Return the weights that are there; what a run that has stored its initial policy does not need may be gone."""
    if model.is_relative_to(run_dir.checkpoints):  # the initial policy beside it has its digest in each checkpoint
        report(
            f"{BASE} {config.model.source} is gone, or has other weights; the run's own copy in {run_dir.checkpoints} is used"
        )
        return StartWeights(base=run_dir.read_provenance()[DIGESTS[BASE]])
    try:
        return start_weights(config, model, digest)
    except ModelError as error:
        if stored_initial(run_dir.checkpoints) is None:
            raise ModelError(f"{error}{where_it_was(run_dir, START)}") from error
        report(f"{START}: the adapter with which this run began is not there; its copy in {run_dir.checkpoints} is used")
        return weights_here(config, model, digest)


def _refuse_other_weights(earlier: Mapping[str, Any], first: RunConfig, config: RunConfig, found: StartWeights) -> None:
    """Refuse other weights under the same name; a repetition may be given others by another name.

    Raises:
        ModelError: names the key, and both digests.
    """
    others = other_weights(earlier, first, found, "with which this run began")
    before, now = sources_of(first), sources_of(config)
    faults = [f"{fault}; restore them, or start a new run" for key, fault in others.items() if now.get(key) == before[key]]
    if faults:
        raise ModelError(listed(faults))
