"""Where a kill is aimed: a phase, a step, and a point in it; chosen at random among what the life has left to do."""

import json
import random
from dataclasses import asdict, dataclass
from typing import Literal

from tests.torture.phases import Phase
from tests.torture.variants import Variant

Moment = Literal["before", "middle", "torn", "after", "timed"]

MOMENTS: dict[Phase, tuple[Moment, ...]] = {
    Phase.RESTORE: ("before", "middle", "after", "timed"),
    Phase.ROLLOUT: ("before", "middle", "after", "timed"),
    Phase.UPDATE: ("before", "middle", "after", "timed"),
    Phase.SYNC: ("before", "middle", "after"),
    Phase.JOURNAL: ("before", "torn", "after"),
    Phase.EVALUATION: ("before", "after", "timed"),
    Phase.WRITE: ("middle", "torn", "timed"),
    Phase.RENAME: ("before", "after"),
    Phase.DROP: ("before", "middle", "after"),
}
"""Of each phase; phases that last microseconds are hit only where the victim waits."""
POINTS: dict[tuple[Phase, Moment], int] = {
    (Phase.SYNC, "middle"): 18,
    (Phase.JOURNAL, "torn"): 400,
    (Phase.WRITE, "middle"): 24,
    (Phase.WRITE, "torn"): 6,
}
"""About how many points there are: parameters, bytes of a line, files and flushes, files."""
LONGEST_DELAY_SECONDS = 0.04


@dataclass(frozen=True, kw_only=True)
class Aim:
    """One kill as it is meant; where it lands is for the victim's announcements to say."""

    phase: Phase
    step: int
    moment: Moment
    """`timed`: `delay` after the phase was entered; else the victim waits for the kill at this point of the phase."""
    nth: int = 1
    """Which of the points in the `middle`; a phase that has fewer waits at its end."""
    delay: float = 0.0
    """Seconds."""

    def encode(self) -> str:
        """Return the text for the victim's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> "Aim":
        """Read the text of `encode`."""
        fields = json.loads(text)
        return cls(**fields | {"phase": Phase(fields["phase"])})

    def __str__(self) -> str:
        """Say it in the report's words."""
        where = f"{self.phase} of step {self.step}" if self.step else str(self.phase)
        point = f" {self.nth}" if self.moment in ("middle", "torn") else ""
        return f"{self.moment}{point} in {where}" if self.moment != "timed" else f"{self.delay * 1000:.0f} ms into {where}"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A kill before it is known from where the life will go on."""

    phase: Phase
    certain: bool
    """The victim waits for it; else it may be timed."""
    soon: bool = False
    """Before the first new checkpoint."""
    moment: Moment | None = None
    """Of the wished phase; None = any."""


def choose(rng: random.Random, wish: Wish, variant: Variant, resumed_at: int) -> Aim:
    """Return an aim in what is left after step `resumed_at`; an update where the wished phase does not come any more."""
    steps = [step for step in steps_of(wish.phase, variant) if step > resumed_at or step == 0]
    if wish.soon:
        steps = [step for step in steps if step <= variant.next_checkpoint(resumed_at)]
    if not steps:
        steps = [min(resumed_at + 1, variant.steps)]
    phase = wish.phase if steps[0] in steps_of(wish.phase, variant) else Phase.UPDATE
    moments = [moment for moment in MOMENTS[phase] if not (wish.certain and moment == "timed")]
    moment = wish.moment if wish.moment in moments else rng.choice(moments)
    return Aim(
        phase=phase,
        step=rng.choice(steps),
        moment=moment,
        nth=rng.randint(1, variant.updates if phase is Phase.UPDATE else POINTS.get((phase, moment), 1)),
        delay=rng.uniform(0, LONGEST_DELAY_SECONDS) if moment == "timed" else 0.0,
    )


def steps_of(phase: Phase, variant: Variant) -> list[int]:
    """Return the steps at which an uninterrupted run of the variant comes to a phase; [0] for one without a step."""
    every = range(1, variant.steps + 1)
    return {
        Phase.RESTORE: [0],
        Phase.SYNC: [step for step in every if step % variant.sync_steps == 0],
        Phase.EVALUATION: [step for step in every[:-1] if variant.eval_every and step % variant.eval_every == 0],
        Phase.WRITE: variant.checkpoints,
        Phase.RENAME: variant.checkpoints,
        Phase.DROP: variant.checkpoints[variant.keep :],
    }.get(phase, list(every))
