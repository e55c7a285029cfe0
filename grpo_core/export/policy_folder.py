"""Write the export of a run: a verified checkpoint, in a folder that other libraries load, with its card."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo_core.export.card import CARD_FILE, Card, write_card
from grpo_core.export.choice import EXPORTS, ExportPlan, ExportWish, plan_export
from grpo_core.export.contents import write_policy
from grpo_core.export.place import placed_whole
from grpo_core.machine.disk import write_whole
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run

FORMAT = 1
"""Of the manifest."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An export that is in its place."""

    folder: Path
    plan: ExportPlan
    card: Card
    notes: tuple[str, ...]
    """What its user has to know."""

    @property
    def facts(self) -> list[str]:
        """What was exported, one line a fact."""
        plan = self.plan
        merged = f"merged weights, {plan.dtype}" if plan.config.model.lora else plan.dtype
        greedy = [e for e in self.card.evaluations if e.policy is not None and e.key.endswith("/greedy_accuracy")]
        return [
            f"policy: {self.card.title}",
            f"exported: {'adapter' if plan.form == 'adapter' else merged}",
            *(f"{e.set_name} greedy accuracy: {e.policy}" for e in greedy),
            *([] if greedy else [f"the policy after step {plan.step} was not evaluated"]),
        ]


def export_policy(
    run_dir: RunDir, wish: ExportWish, folder: Path | None = None, report: Callable[[str], None] = lambda _: None
) -> Exported:
    """Export a policy of a run.

    Args:
        run_dir: of the run; nothing in it is changed.
        wish: which checkpoint, in which form.
        folder: where to; None = named after run, step and form below `runs/exports/`. An earlier export there is replaced.
        report: takes a line before what may take long.

    Raises:
        ConfigError: what is asked for contradicts the run.
        ModelError: there is no such checkpoint, it is damaged, or the base of an adapter cannot be used.
        FolderError: the folder is not an export of ours, was changed, or another export is writing it.
        JournalError: the run's journal is damaged, or the disk is full.
    """
    plan = plan_export(run_dir, wish)
    history = check_run(run_dir).history
    target = folder if folder is not None else EXPORTS / plan.name
    report(f"exporting {plan.checkpoint} to {target}")
    facts = {
        "format": FORMAT,
        "form": plan.form,
        "dtype": plan.dtype,
        "state": asdict(plan.state),
        "config_digest": run_dir.read_provenance().get("config_digest"),
    }
    with placed_whole(target, facts) as scratch:
        notes = write_policy(plan, scratch)
        card = write_card(plan, history, notes)
        write_whole(scratch / CARD_FILE, card.text)
    return Exported(folder=target, plan=plan, card=card, notes=notes)
