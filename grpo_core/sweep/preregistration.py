"""What a sweep was to answer and how, written into its folder before its first run, and where it departed from that."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grpo_core.config.origin import leaves
from grpo_core.config.spelling import level_name
from grpo_core.errors import SweepError, raised_as, shown
from grpo_core.machine.disk import read_json, write_json
from grpo_core.machine.hardware import processor
from grpo_core.run.folder import RunDir
from grpo_core.run.provenance import SHOWN, source_state
from grpo_core.sweep.display import counted, first_few, knob_name
from grpo_core.sweep.folder import StoredSweep, SweepDir
from grpo_core.sweep.plan import Plan
from grpo_core.sweep.statistics.findings import QUESTION_SHARE
from grpo_core.sweep.statistics.paired import ALPHA

FAMILY = "all sentences of the report about the objective and the drift, Holm's weighted step-down correction"
PLANNED = (
    *("seeds", "axes", "settings", "trials", "from_step", "fork", "hold", "sampler", "budget"),
    *("question", "objective", "primary", "claim"),
)
"""Keys of a sweep that are registered."""
OF_RUNS = {"git_commit": "code commit", "processor": "processor", "data_digest": "prompts"}
"""Facts of a run's provenance that are compared with those that were registered."""


def preregister(sweep_dir: SweepDir, plan: Plan, made: Mapping[str, Any] | None, data_digest: str | None) -> None:
    """Write preregistered.json of a sweep that begins; a sweep that is there keeps its own.

    Args:
        sweep_dir: of the sweep, which has no sweep.json yet.
        plan: the sweep.
        made: the plan of `grpo sweep FILE --plan`; None = there is none.
        data_digest: of the frozen prompts; None = not known before the first run.

    Raises:
        SweepError: the folder already holds a sweep, or cannot be written.
    """
    sweep_dir.refuse_second_sweep()
    sweep = plan.sweep.model_dump(mode="json")
    facts = {key: sweep[key] for key in PLANNED}
    what = f"sweep dir {sweep_dir.path}: cannot be written ({{cause}}); give another --sweep-dir"
    with raised_as(SweepError, what, OSError):
        write_json(
            sweep_dir.preregistered_file,
            {
                "written": datetime.now(UTC).isoformat(timespec="seconds"),
                **facts,
                "runs": plan.num_runs,
                "alpha": ALPHA,
                "family": FAMILY,
                "share_of_question": QUESTION_SHARE if sweep["primary"] else None,
                "git_commit": source_state()[0],
                "processor": processor(),
                "data_digest": data_digest,
                "plan": made,
            },
        )


def departures(stored: StoredSweep, rows: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """Return when a sweep was registered, and in what it departs from that, a clause each; ("", ()) where it was not.

    Args:
        stored: the sweep.
        rows: of its runs: each has a `status`, and its `run_dir`.

    Raises:
        SweepError: preregistered.json was changed into something else.
    """
    file = stored.dir.preregistered_file
    if not file.exists():
        return "", ()
    with raised_as(
        SweepError, f"{file}: cannot be read ({{cause}})", OSError, ValueError, LookupError, TypeError, AttributeError
    ):
        registered, sweep = read_json(file), stored.plan.sweep.model_dump(mode="json")
        changed = stored.plan.sweep.changed
        return str(registered["written"]), (*_of_plan(registered, sweep), *_of_runs(registered, changed, rows))


def _of_plan(registered: Mapping[str, Any], sweep: Mapping[str, Any]) -> Iterator[str]:
    was, now = (dict(leaves("", {key: of.get(key) for key in PLANNED if key in registered})) for of in (registered, sweep))
    for key in was | now:
        old, new, name = was.get(key), now.get(key), knob_name(key.removeprefix("axes."))
        if isinstance(old, list) and isinstance(new, list) and (added := [value for value in new if value not in old]):
            yield f"{name}: {first_few([level_name(key.removeprefix('axes.'), value) for value in added])} added"
        elif old != new:
            yield f"{name}: {shown(new)}, registered was {shown(old)}"


def _of_runs(registered: Mapping[str, Any], changed: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if failed := sum(row["status"] == "failed" for row in rows):
        yield f"{counted(failed, 'failed run')} left out"
    known = [RunDir(Path(row["run_dir"])).read_provenance() for row in rows]
    changes_prompts = any(key.startswith("data.") for key in changed)  # on purpose, so it is no departure
    for key, name in OF_RUNS.items():
        others = [str(facts[key]) for facts in known if facts.get(key) not in (None, registered[key])]
        if others and registered[key] and not (key == "data_digest" and changes_prompts):
            cut = None if key == "processor" else SHOWN
            first = first_few([one[:cut] for one in dict.fromkeys(others)])
            yield f"{name} {first} in {counted(len(others), 'run')}, registered was {registered[key][:cut]}"
