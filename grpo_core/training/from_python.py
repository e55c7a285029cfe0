"""Train from Python, for example in a notebook: no Prefect and no MLflow, and the same folder that `grpo train` makes.

The steps run in a process of their own, as everywhere; this one prepares the folder, starts that process and shows how far it
is. What it leaves can be resumed and evaluated by `grpo` and logged to MLflow by `grpo track`.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from grpo_core.config import (
    Origin,
    RunConfig,
    apply_overrides,
    as_overrides,
    changes_between,
    check_consistency,
    load,
    validate_config,
)
from grpo_core.data.prepare import prepare
from grpo_core.errors import GrpoError, TrainingError
from grpo_core.evaluation.held_out import MODULE, evaluate_if_needed, was_cut_short
from grpo_core.evaluation.results import HELD_OUT
from grpo_core.machine.disk import durable_folder, flush_all, link_or_copy, write_whole
from grpo_core.parallel import processes_here
from grpo_core.policy.sources.find import is_made, weights_digest
from grpo_core.run import forking
from grpo_core.run.child import end_process, finish_child, import_as_at_start, import_folders, process_has_started, run_watched
from grpo_core.run.fit import announce_memory, slow_dtype_warnings
from grpo_core.run.folder import RunDir, batch_limits, change_passes, passes_to_change
from grpo_core.run.journal import JournalTail, Record, is_alert, supersede
from grpo_core.run.preflight import require_start
from grpo_core.run.provenance import find_model, note_inputs
from grpo_core.run.resuming import check_resumable, lock_run, new_run, remove_if_never_started
from grpo_core.run.rules import Alert, RunRules
from grpo_core.run.sizes import announce_disk
from grpo_core.text import redact_uri, visible
from grpo_core.training import training_arguments, training_module
from grpo_core.training.given import given_settings

if TYPE_CHECKING:
    from grpo_core.run.curves import Run

SHOWN = {"reward": "reward/mean", "KL": "kl/ref/drift", "KL_init": "kl/init/drift"}
"""Label -> metric of a step, beside the bar."""


class Follower:
    """Shows how far a run is, on a bar (a widget in a notebook, a line at a terminal), and applies the rules to its journal."""

    def __init__(self, run_dir: RunDir, *, shown: bool = True) -> None:
        """Expect the steps of a run; show nothing where `shown` is False."""
        from tqdm.auto import tqdm

        self._run_dir, self._name, self._shown = run_dir, run_dir.path.name, shown
        steps = run_dir.read_config().training.steps
        self.bar: Any = tqdm(total=steps, desc=self._name, unit="step", disable=not shown, dynamic_ncols=True)

    def stage(self, what: str) -> None:
        """Show what is done now; the pace is that of this stage."""
        self.bar.unpause()
        self.bar.set_description(f"{self._name}, {what}")

    def say(self, text: str) -> None:
        """Write one line above the bar; nothing in it acts on a terminal."""
        if self._shown:
            self.bar.write(visible(redact_uri(text)))

    def begin(self, *, evaluates: bool) -> None:
        """Take what earlier sessions have journalled; what of it nobody has judged yet is judged now.

        Raises:
            OSError: the training cannot be asked to stop.
        """

        def end(file: Path) -> None:
            # By another thread: this one notes the end of the process, for which `end_process` waits.
            Thread(target=end_process, args=(file,), daemon=True).start()

        self._rules = RunRules(self._run_dir, end, evaluates=evaluates)
        self._tail = JournalTail(self._run_dir.journal_file)
        records = list(self._tail.read())
        for step in [record for record in supersede(records) if record.kind == "step"][-1:]:
            self._show(step)
        self.warn(self._rules.catch_up(records))
        self._last_record = time.monotonic()

    def read(self) -> None:
        """Show and judge what the journal has got since the last call.

        Raises:
            OSError: the training cannot be asked to stop.
        """
        for record in self._tail.read():
            self._last_record = time.monotonic()
            self._show(record)
            self.warn(self._rules.check(record))

    def look(self) -> None:
        """Pause, read, and judge how long the training has been silent.

        Raises:
            OSError: the training cannot be asked to stop.
        """
        pause()
        self.read()
        if not process_has_started(self._run_dir.process_file):
            self._last_record = time.monotonic()  # it waits for a slot
        self.warn(self._rules.check_silence(time.monotonic() - self._last_record))

    def warn(self, alerts: Iterable[Alert]) -> None:
        """Write a line for each alert that is new."""
        for alert in alerts:
            if not alert.reported:
                self.say(f"alert: {alert.text}")

    def _show(self, record: Record) -> None:
        if record.kind == "step":
            self.bar.update(record.step - self.bar.n)  # backwards, too: a resumed run repeats steps
            self.bar.set_postfix({label: f"{record.metrics[key]:.3g}" for label, key in SHOWN.items() if key in record.metrics})
        elif is_alert(record):
            self.say(f"alert: {record.data.get('text')}")


logger = logging.getLogger(__name__)

pause = partial(time.sleep, 0.1)


def train(
    config: RunConfig | Path | str = "quickstart",
    *,
    rewards: Any = None,
    data: Any = None,
    model: Path | str | None = None,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    run_dir: Path | str | None = None,
    evaluate: bool = True,
    progress: bool = True,
    continue_from: Path | str | None = None,
) -> "Run":
    """Train a policy and return its run.

    Ctrl-C (in a notebook: Interrupt) lets the step finish and writes a checkpoint, then raises KeyboardInterrupt.

    Args:
        config: a configuration, the name of a preset, or the path of a YAML file.
        rewards: in place of its own: functions in TRL's signature, names such as `math_answer` or `my_rewards:f`, or
            `{"fn": function or name, "weight": 0.5}`; one, or a list.
        data: in place of its own: rows, as dicts, a `datasets.Dataset` or a `pandas.DataFrame`.
        model: in place of its own: a folder or hub id.
        overrides: applied last: `{"loss.beta": 0.1}`, or `["loss.beta=0.1"]` as on the command line.
        run_dir: folder of the run; None = a new one under `runs/`.
        evaluate: whether the policy is evaluated on the held-out prompts, before and after.
        progress: whether a progress bar and the warnings are shown.
        continue_from: folder of a run that is forked at its newest checkpoint, `FOLDER@40`: at step 40; no `config` then.

    Raises:
        ConfigError, DataError: the configuration, a function or the rows are refused; nothing was started.
        JournalError: the folder holds a run or is not ours, its disk is too small, or the run to fork has no such step.
        TrainingError: the training failed; the message is its cause.
    """
    settings, files = given_settings(rewards, data, model)
    resolved, origin = _configure("" if continue_from is not None else config, overrides, settings, continue_from)
    with new_run(Path(run_dir) if run_dir is not None else None, origin.preset, "run") as folder:
        if files:
            origin = replace(origin, import_from=(*origin.import_from, _keep(folder, files)))
        if data is not None:
            source = settings["data.source"].replace("file:", f"file:{folder.given.resolve()}/")
            resolved = resolved.model_copy(update={"data": resolved.data.model_copy(update={"source": source})})
        warnings = require_start(resolved, origin.import_from, folder.path, is_tracked=False)
        notes = [*forking.take_over(folder, resolved, origin), *(f"warning: {warning}" for warning in warnings)]
        folder.create(resolved, origin, history=forking.inherited_journal(folder, origin))
    return _run(folder, evaluate, progress, is_new=True, notes=notes)


def _keep(run_dir: RunDir, files: Mapping[str, str | Path]) -> str:
    """Write what was given to a run into its folder; return where."""
    given = durable_folder(run_dir.given).resolve()
    for name, content in files.items():
        if isinstance(content, str):
            write_whole(given / name, content)
            continue
        durable_folder((given / name).parent)
        link_or_copy(content, given / name)
    flush_all(given)
    return str(given)


def resume_training(
    run_dir: Path | str,
    *,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    evaluate: bool = True,
    progress: bool = True,
) -> "Run":
    """Resume an interrupted run from its newest checkpoint, as if it had never stopped, and return it.

    Args:
        run_dir: folder of the run; its configuration stays as it is.
        overrides: a smaller `training.microbatch_tokens` or `training.rollout_rows`, where it was out of memory;
            `training.processes` and `training.shards`.
        evaluate: whether the policy is evaluated on the held-out prompts, before and after, where that is missing.
        progress: whether a progress bar is shown.

    Raises:
        ConfigError: another key is given, a size that is not smaller, or processes that a configuration could not have.
        JournalError: the folder holds no training, one that cannot be resumed, or its journal is damaged.
        FolderError: the folder is not ours, or another process works on the run.
        TrainingError: the training failed; the message is its cause.
    """
    folder = RunDir(Path(run_dir))
    folder.read_config()
    sizes, notes = passes_to_change(as_overrides(overrides)), check_resumable(folder)
    if sizes:
        with lock_run(folder, logger.warning):
            notes = (*notes, *change_passes(folder, sizes))
    return _run(folder, evaluate, progress, notes=notes)


def _configure(
    config: RunConfig | Path | str,
    overrides: Mapping[str, Any] | Iterable[str],
    given: Mapping[str, Any],
    parent: Path | str | None,
) -> tuple[RunConfig, Origin]:
    changes = {**given, **as_overrides(overrides)}
    if isinstance(config, RunConfig):
        resolved = validate_config(apply_overrides(config.model_dump(mode="json"), changes)) if changes else config
        origin, folders = Origin(changes=changes_between(RunConfig(), resolved)), import_folders(resolved)
    else:
        loaded = load(config, changes) if parent is None else forking.fork_of(str(parent), changes)
        resolved, folders = loaded.config, loaded.import_from or import_folders(loaded.config, None if parent else str(config))
        origin = Origin(preset=loaded.preset, changes=loaded.changes, forked_from=loaded.forked_from)
    of_script = [str(Path(folder).resolve()) for folder in sys.path[:1]] if folders else []  # its modules may be rewards, too
    # A run is named after what was changed of its preset, and not after what is its user's in any case.
    named = {key: values for key, values in origin.changes.items() if not key.startswith(tuple(given))}
    return resolved, replace(origin, changes=named, import_from=tuple(dict.fromkeys((*of_script, *folders))))


def _run(run_dir: RunDir, evaluate: bool, progress: bool, *, is_new: bool = False, notes: Sequence[str] = ()) -> "Run":
    """Do what is left to do of the run in a folder, in the order of the flow `grpo`."""
    from grpo_core.run.curves import Run

    config, follower = run_dir.read_config(), Follower(run_dir, shown=progress)
    digest, resume = cache(weights_digest), f"resume_training({str(run_dir.path)!r}) continues the run"
    with follower.bar, contextlib.ExitStack() as stack:
        stack.enter_context(lock_run(run_dir, follower.say))
        if is_new:
            stack.enter_context(remove_if_never_started(run_dir, counts=lambda error: isinstance(error, Exception)))
        for note in (*notes, *(f"warning: {text}" for text in (*check_consistency(config), *slow_dtype_warnings(config)))):
            follower.say(note)
        _prepare(run_dir, digest, follower.say)
        try:
            kept = _evaluate(run_dir, "base", digest, follower) if evaluate else None
            if Run(run_dir.path).state != "finished":
                _train(run_dir, follower, kept)
            if evaluate:
                _evaluate(run_dir, "final", digest, follower)
        except KeyboardInterrupt:
            follower.say(resume)
            raise
        run = Run(run_dir.path)
        if run.state == "stopped":
            follower.say(f"stopped early: {run.reason}; {resume}")
        return run


def _prepare(run_dir: RunDir, digest: Callable[[Path], str], say: Callable[[str], None]) -> None:
    """Freeze the prompts, find the model, load the rewards once, check the disk."""
    from grpo_core.rewards.base import load_rewards

    config = run_dir.read_config()
    import_as_at_start(run_dir)
    load_rewards(config.rewards)
    if not is_made(config.model.source):
        say(f"making the model {config.model.source}, once: one or two minutes on one core")
    manifest = prepare(config, run_dir.data)
    say(f"data: {manifest}")
    folder = find_model(run_dir, digest)
    note_inputs(run_dir, manifest.digest, folder, say, digest)
    announce_disk(run_dir, folder, say)
    announce_memory(run_dir, folder, say)


def _evaluate(run_dir: RunDir, policy: str, digest: Callable[[Path], str], follower: Follower) -> str:
    def evaluate(arguments: Sequence[str], log_file: Path) -> None:
        follower.stage(f"evaluating {policy}")
        rules = RunRules(run_dir)
        run_watched(
            MODULE,
            arguments,
            log_file,
            look=pause,
            stop=finish_child,
            report=follower.say,
            silent=lambda seconds: follower.warn(rules.check_silence(seconds, policy)),
            python=run_dir.read_config().training.python,
            import_from=sys.path[:1],
        )

    return evaluate_if_needed(run_dir, policy, HELD_OUT, 0, evaluate=evaluate, digest=digest, wait=pause, report=follower.say)


def _train(run_dir: RunDir, follower: Follower, kept: str | None) -> None:
    config = batch_limits(run_dir).applied(run_dir.read_config())
    follower.stage("training")
    follower.begin(evaluates=kept is not None)
    text = "interrupted: the training finishes its step and writes a checkpoint; interrupt again to end it at once"
    try:
        run_watched(
            training_module(config),
            training_arguments(run_dir.path, kept),
            run_dir.log_file("train"),
            look=follower.look,
            stop=lambda child: finish_child(child, lambda: follower.say(text)),
            report=follower.say,
            python=config.training.python,
            state_file=run_dir.process_file,
            processes=processes_here(config.training.processes),
            import_from=sys.path[:1],  # the folder of the script, whose modules may be named as rewards
        )
    except BaseException as error:
        with contextlib.suppress(GrpoError, OSError):  # what ended the training is what its caller must learn
            follower.read()
        if not (isinstance(error, TrainingError) and was_cut_short(run_dir)):
            raise
    follower.read()  # what the process wrote before it ended
