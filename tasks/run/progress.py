"""What a person sees while a run is under way: a live table on a terminal, plain lines elsewhere, log lines in a worker."""

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from prefect import get_run_logger
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from grpo_core.config import RunConfig, TrainingConfig
from grpo_core.machine.process import ignore_broken_pipe
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record, is_alert
from grpo_core.sweep.display import duration
from grpo_core.text import redact_uri, visible
from grpo_core.training.ending import share_done
from tasks.process.context import deployed_flow_run

ROWS = 12
"""Steps that the live table shows."""
COLUMNS = (
    ("reward", "reward/mean", ".3f"),
    ("KL ref", "kl/ref/drift", ".4f"),
    ("KL init", "kl/init/drift", ".4f"),
    ("entropy", "policy/entropy", ".3f"),
    ("tokens", "completion/tokens/mean", ".1f"),
    ("syncs", "ref/sync_count", ".0f"),
    ("tok/s", "perf/completion_tokens_per_second", ".0f"),
    ("s/step", "time/step_seconds", ".1f"),
)
"""(heading, metric, format) of the live table."""


def say(text: str) -> None:
    """Write one line to standard output, or in a worker to the flow run's log; nothing in it acts on a terminal."""
    if deployed_flow_run() is not None:
        get_run_logger().info(visible(redact_uri(text)))
    else:
        with ignore_broken_pipe():
            sys.stdout.write(visible(redact_uri(text)) + "\n")
            sys.stdout.flush()


MOST_SHOWN = 40
"""Characters of a prompt before its completion."""


class ProgressView:
    """Shows records as they come: as lines, or the steps as a table that is redrawn, below the lines of other records."""

    def __init__(self, settings: TrainingConfig, console: Console | None = None) -> None:
        """Expect the steps of a configuration; with a console, `draw` is what is redrawn there."""
        self._pace, self._console = Pace(settings), console
        self._rows: deque[Record] = deque(maxlen=ROWS)
        self._sample = Text(no_wrap=True, overflow="ellipsis")

    def show(self, record: Record) -> None:
        """Show a record that a person follows."""
        if record.kind == "step":
            self._add(record)
        if (self._console is None or record.kind != "step") and (text := describe(record, self._pace)):
            self.say(text, "yellow" if is_alert(record) else "")

    def resume(self, record: Record) -> None:
        """Take note of the last step that was finished before."""
        self._add(record)
        if self._console is None:
            self.say(f"resuming: the journal reaches step {record.step} of {self._pace.steps}")

    def show_sample(self, run_dir: RunDir) -> None:
        """Show below the table one completion of the last step that was kept."""
        if self._console is not None:
            from grpo_core.run.samples import kept_steps, read_groups  # loads pandas

            for step in kept_steps(run_dir)[-1:]:
                group = read_groups(run_dir, step)[0]
                gold = f" (gold {group.answer})" if group.answer else ""
                text = f"step {step}: {group.end[-MOST_SHOWN:]}{gold} → {group.completions[0].line}"
                self._sample.plain = visible(redact_uri(text))

    def _add(self, record: Record) -> None:
        self._pace.count(record)
        self._rows.append(record)

    def say(self, text: str, style: str = "") -> None:
        """Write one line, which need not be a record, such as an alert; at a terminal in the colour of `style`."""
        if self._console is None:
            say(text)
        else:
            self._console.print(visible(redact_uri(text)), style=style, highlight=False, markup=False, emoji=False)

    def draw(self) -> Group:
        """Return the table, with a bar and the time left."""
        table = Table("step", *(heading for heading, _, _ in COLUMNS), expand=False)
        for record in self._rows:
            cells = (format(record.metrics.get(key, 0.0), form) for _, key, form in COLUMNS)
            table.add_row(f"{record.step}/{self._pace.steps}", *cells)
        footer = Table.grid(padding=(0, 1))
        footer.add_row(ProgressBar(total=1.0, completed=self._pace.share, width=40), self._pace.text())
        return Group(table, self._sample, footer)


@contextmanager
def progress_view(config: RunConfig) -> Iterator[ProgressView]:
    """Yield the view for where this process runs: a live table on a terminal, lines elsewhere."""
    if deployed_flow_run() is not None or not sys.stdout.isatty():
        yield ProgressView(config.training)
        return
    view = ProgressView(config.training, console := Console())
    with Live(console=console, refresh_per_second=4, get_renderable=view.draw):
        yield view


class Pace:
    """How fast the steps come, and so how long the rest takes."""

    def __init__(self, settings: TrainingConfig) -> None:
        """Expect the steps, or the tokens, of a configuration."""
        self.steps = settings.steps
        self.share = 0.0
        """Of the run that is done, 0..1."""
        self._settings = settings
        self._done = 0
        self._recent: deque[float] = deque(maxlen=10)
        self._started = time.monotonic()

    def count(self, record: Record) -> None:
        """Take note of a step."""
        self._done = record.step
        self.share = share_done(self._settings, record)
        self._recent.append(record.metrics.get("time/step_seconds", 0.0))

    def text(self) -> str:
        """Return `3 min 12 s, about 2 min 40 s left`."""
        elapsed = duration(time.monotonic() - self._started)
        if not self._recent:
            return f"{elapsed}, waiting for the first step"
        steps = min(self._done / self.share, self.steps) if self.share else self.steps
        left = max(steps - self._done, 0) * sum(self._recent) / len(self._recent)
        return f"{elapsed}, about {duration(left)} left"


def describe(record: Record, pace: Pace) -> str | None:
    """Return one line about a record, None for records that nobody follows."""
    data, get = record.data, record.metrics.get
    match "alert" if is_alert(record) else record.kind:
        case "alert":
            return f"alert: {data.get('text')}"
        case "step":
            return (
                f"step {record.step}/{pace.steps}  reward {get('reward/mean', 0):.3f}  KL {get('kl/ref/drift', 0):.4f} "
                f"(init {get('kl/init/drift', 0):.4f})  syncs {get('ref/sync_count', 0):.0f}  "
                f"{get('perf/completion_tokens_per_second', 0):.0f} tok/s  {get('time/step_seconds', 0):.1f} s/step  "
                f"{pace.text()}"
            )
        case "ref_sync":
            about = (
                f"reference synchronised (alpha {data['alpha']:g}), KL {data['kl_before']:.4f} -> {data['kl_after']:.4f}, "
                f"distance {data['param_distance']:.4f}"
            )
        case "eval":
            accuracy = next(value for key, value in record.metrics.items() if key.endswith("/greedy_accuracy"))
            about = f"held-out greedy accuracy {accuracy:.3f} on {data['num_prompts']} prompts"
        case "checkpoint":
            about = f"checkpoint {data['name']}"
        case "end":
            about = f"{data['status']} ({data['reason']})" if data.get("reason") else str(data["status"])
        case _:
            return None
    return f"step {record.step}: {about}"
