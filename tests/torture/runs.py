"""One run: killed and resumed as its plan says, until it is done, and then compared with the run that was never killed."""

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from grpo_core.errors import GrpoError
from grpo_core.run.flow_folder import MARKER_FILE
from grpo_core.run.folder import RunDir
from tests.torture.aims import Aim, choose
from tests.torture.compare import differences, raw_records
from tests.torture.lives import Fatal, Life, live
from tests.torture.phases import Event, Landing, landing
from tests.torture.plans import Plan
from tests.torture.remains import Remains, damage_newest, look_at
from tests.torture.variants import Variant


@dataclass(frozen=True, kw_only=True)
class Death:
    """One kill and what it left."""

    life: int
    """From 1."""
    aim: Aim
    landing: Landing
    remains: Remains
    is_again: bool
    """It came after a resume and before the first new checkpoint."""
    damage: str | None
    """What was done to the newest checkpoint then."""


@dataclass(kw_only=True)
class Outcome:
    """What became of a run."""

    plan: Plan
    mu: int
    deaths: list[Death] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    lives: int = 0
    leftovers: list[str] = field(default_factory=list)
    """In the folder of checkpoints, after the end, of what the witness does not have."""

    @property
    def is_equal(self) -> bool:
        """Whether it is its witness, bit for bit."""
        return not self.differences


def run_witness(variant: Variant, folder: Path, deadline: float) -> RunDir:
    """Train a variant without interruption, as a user would.

    Raises:
        RuntimeError: it failed.
        OutOfTimeError: the deadline came first.
    """
    run_dir = variant.prepare(folder)
    life = live("grpo_core.training", [str(run_dir.path)], run_dir.log_file("train"), deadline)
    if life.exit_code != 0:
        raise RuntimeError(f"the witness of {variant.name} ended with {life.exit_code}: {_last_line(run_dir)}")
    return run_dir


def torture(plan: Plan, variant: Variant, witness: RunDir, folder: Path, deadline: float, fault: str | None = None) -> Outcome:
    """Kill a run as planned, resume it until it is done, compare it with the witness.

    Raises:
        OutOfTimeError: the deadline came first.
    """
    rng = random.Random(plan.seed)
    run_dir = variant.prepare(folder) if variant.begins_after else _copy_unbegun(witness, folder)
    outcome = Outcome(plan=plan, mu=variant.mu)
    wishes = list(plan.wishes)
    while True:
        outcome.lives += 1
        before = look_at(run_dir)
        aim = choose(rng, wishes.pop(0), variant, max(before.newest, variant.begins_after)) if wishes else None
        life = _one_life(run_dir, aim, deadline, fault)
        if not life.was_killed:
            break
        assert aim is not None
        remains = look_at(run_dir)
        is_again = outcome.lives > 1 and remains.newest == before.newest
        undamaged = all(death.damage is None for death in outcome.deaths)
        damage = damage_newest(run_dir, rng) if plan.damaged and undamaged else None
        where = landing(life.events)
        outcome.deaths.append(
            Death(life=outcome.lives, aim=aim, landing=where, remains=remains, is_again=is_again, damage=damage)
        )
    outcome.differences = _judge(run_dir, witness, outcome, life)
    outcome.leftovers = sorted(_names(run_dir) - _names(witness))
    return outcome


def _one_life(run_dir: RunDir, aim: Aim | None, deadline: float, fault: str | None) -> Life:
    arguments = [str(run_dir.path)]
    if aim is not None:
        arguments += ["--aim", aim.encode()]
    if fault is not None:
        arguments += ["--fault", fault]
    return live("tests.torture.victim", arguments, run_dir.log_file("train"), deadline, _fatal(aim))


def _fatal(aim: Aim | None) -> Fatal:
    """Return what kills for an aim: the announcement that the victim waits, or a while after one that it has begun."""

    def fatal(event: Event) -> float | None:
        if aim is None:
            return None
        if aim.moment == "timed":
            begun = event.what == "enter" and (event.phase, event.step) == (aim.phase, aim.step)
            return aim.delay if begun else None
        return 0.0 if event.what == "pause" else None

    return fatal


def _judge(run_dir: RunDir, witness: RunDir, outcome: Outcome, life: Life) -> list[str]:
    if life.exit_code != 0:
        return [f"life {outcome.lives} ended with {life.exit_code}: {_last_line(run_dir)}"]
    try:
        return [*differences(witness, run_dir), *_silent_damage(run_dir, outcome)]
    except (GrpoError, OSError, ValueError) as error:
        return [f"cannot be compared: {type(error).__name__}: {error}"]


def _silent_damage(run_dir: RunDir, outcome: Outcome) -> list[str]:
    """Return the damages that no alert names."""
    alerts = [str(record.data["text"]) for record in raw_records(run_dir.journal_file) if record.kind == "alert"]
    damages = [death.damage for death in outcome.deaths if death.damage is not None]
    return [f"no alert: {damage}" for damage in damages if not any(damage.split("/")[0] in text for text in alerts)]


def _copy_unbegun(witness: RunDir, folder: Path) -> RunDir:
    """Copy configuration and data of the witness: the same prompts, without preparing them again."""
    folder.mkdir()
    for source in (witness.path / MARKER_FILE, witness.config_file, witness.origin_file):
        shutil.copy2(source, folder)
    shutil.copytree(witness.data, folder / witness.data.name)
    return RunDir(folder)


def _names(run_dir: RunDir) -> set[str]:
    return {path.name for path in run_dir.checkpoints.iterdir()}


def _last_line(run_dir: RunDir) -> str:
    return (run_dir.log_file("train").read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
