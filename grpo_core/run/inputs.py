"""What a run is made with, noted before it starts, and compared with what it was made with when it is resumed or repeated."""

from collections.abc import Callable

from grpo_core.errors import ModelError
from grpo_core.run.alerts import add_alert, monitor_alerts
from grpo_core.run.folder import RunDir
from grpo_core.run.provenance import collect_provenance, environment_differences, write_provenance


def note_inputs(run_dir: RunDir, data_digest: str, model_digest: str, report: Callable[[str], None]) -> None:
    """Write provenance.json of a run that starts; of one that is resumed or repeated, report what differs from its first.

    Args:
        run_dir: with its configuration.
        data_digest: of its frozen prompts.
        model_digest: SHA-256 of the weights of the initial policy.
        report: takes one line a difference.

    Raises:
        ModelError: a resumed run would continue with another initial policy.
    """
    config = run_dir.read_config()
    provenance = collect_provenance(config.model_dump(mode="json"), data_digest, model_digest)
    is_resumed = run_dir.provenance_file.exists()
    earlier = run_dir.read_provenance() or RunDir(run_dir.original).read_provenance()
    if is_resumed and earlier["model_digest"] != model_digest:
        raise ModelError(
            f"model.source {config.model.source}: its weights (SHA-256 {model_digest[:12]}) are not those with which this run "
            f"began ({earlier['model_digest'][:12]}); restore them, or start a new run"
        )
    if earlier:
        known = {raised.text for raised in monitor_alerts(run_dir)}
        for difference in environment_differences(earlier, provenance):
            report(f"environment: {difference}")
            alert = f"resumed in another environment: {difference}"
            if is_resumed and alert not in known:
                add_alert(run_dir, 0, alert)
    if not is_resumed:
        write_provenance(provenance, run_dir.provenance_file)
