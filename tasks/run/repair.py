"""Repair the damaged journal of a run before it is resumed."""

from pathlib import Path

from grpo_core.errors import JournalError
from grpo_core.run.folder import RunDir
from tasks.run.progress import say
from tasks.run.setup import Repair, hold_run


def repair_run(run_path: Path, repair: Repair) -> None:
    """Make the journal of a run whole again; one that is whole stays as it is.

    Raises:
        JournalError: another process works on the run, or the journal cannot be repaired in this way.
        TrackingError: MLflow cannot be read.
    """
    from grpo_core.run.rebuild import rebuild
    from grpo_core.run.repair import cut, find_damage, rewrite
    from tasks.tracking.fetch import tracked_figures

    run_dir = RunDir(run_path)
    engine = run_dir.read_config().training.engine
    with hold_run(run_path):
        damage = find_damage(run_dir)
        if damage is None:
            say(f"{run_dir.journal_file}: whole, so there is nothing to repair")
            return
        say(f"{run_dir.journal_file}: {damage.fault}")
        if repair == "mlflow":
            rebuilt = rebuild(damage, tracked_figures(run_dir))
            rewrite(run_dir, rebuilt)
            say(str(rebuilt[0].data["text"]))
        elif engine != "native":
            raise JournalError(f"run dir {run_path}: training.engine {engine} cannot go back to a checkpoint; start a new run")
        else:
            say(cut(run_dir, damage))
