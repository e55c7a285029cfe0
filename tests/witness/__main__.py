"""Make a run, a sweep, a comparison and an export again through the public commands, and compare them with the recorded ones.

python -m tests.witness                  compare with tests/witness/data
python -m tests.witness --write FOLDER   write there what was made instead (tests/witness/data after an intended change)

Figures are equal to the last bit on the kind of machine that the data are of (machine.json), within 1e-5 elsewhere; words are
equal; facts of reports and cards are compared as sets of (key, value), so their layout may change. Not compared: times, hosts,
paths, ids, versions, digests. Exit code 1 if anything differs.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas
import yaml

from grpo_core.metrics import find_metric
from grpo_core.run.curves import CURVE_KINDS

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).with_name("data")
RELATIVE, ABSOLUTE = 1e-5, 1e-7
"""On another kind of machine; the second is for figures that are 0 but for rounding."""
SHOWN = 60
TIMEOUT_SECONDS = 900.0
RUN = (
    *("sums_tiny_cpu", "rollout.num_prompts_per_step=8", "rollout.group_size=4", "reference.sync_steps=4"),
    *("reference.kl_full_every=4", "probe.every_steps=4", "training.steps=12", "training.checkpoint_every=6"),
    *("training.completions_every=4", "evaluation.num_prompts=40", "evaluation.samples=2", "evaluation.k=[1, 2]"),
    "evaluation.every_steps=6",
)
SWEEP = {
    "question": "Which β and sync period get the most sums right?",
    "base": "sums_tiny_cpu",
    "overrides": {
        "rollout.num_prompts_per_step": 32,
        "rollout.group_size": 4,
        "training.steps": 16,
        "probe.every_steps": 8,
        "training.checkpoint_every": 8,
        "training.completions_every": 8,
        "evaluation.num_prompts": 100,
        "evaluation.samples": 8,
        "evaluation.k": [1, 4],
    },
    "axes": {"loss.beta": [0.1, 40.0], "reference.sync_steps": [None, 4]},
    "seeds": [0, 1],
    "objective": {"metric": "eval/heldout/pass_at_1"},
    "primary": {"knob": "loss.beta", "first": 40.0, "second": 0.1},
    "runs": {"concurrency": 2},
}
COMPARED = tuple(f"runs/sweep/runs/arm-{arm}-seed-{seed}" for arm in ("000", "003") for seed in (0, 1))
OF_THE_MACHINE = {
    *("python", "hardware", "torch", "transformers", "numpy", "reasoning-gym", "math-verify", "datasets", "peft", "trl"),
    *("mlflow", "prefect", "code"),
}
"""Keys of a card whose values are not compared."""
LEFT_OUT = re.compile(r"seconds|time\b|run_dir|run dir|mlflow|MLflow|colour|dash|^made$|^version$|^weights$|^folder$|^given$")
"""Names of columns and keys that are of the machine, the day or the look."""
HEX = re.compile(r"\b[0-9a-f]{32,64}\b")


class Tables(HTMLParser):
    """What a page says: rows of tables, terms and their definitions, items and titles, as (key, value)."""

    def __init__(self, page: str) -> None:
        """Read a page."""
        super().__init__()
        self.facts: list[tuple[str, str]] = []
        self._caption, self._term, self._text = "", "", ""
        self._header: list[str] = []
        self._row: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """Begin a text."""
        if tag in {"th", "td", "caption", "dt", "dd", "li", "h2", "style", "script"}:
            self._text = ""
        if tag == "small":
            self._text += ", "
        if tag == "tr":
            self._row = []
        if tag == "table":
            self._header = []

    def handle_data(self, data: str) -> None:
        """Add to a text."""
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        """End a text, a row, or what is a fact by itself."""
        text = " ".join(self._text.split())
        if tag == "caption":
            self._caption = text
        elif tag == "dt":
            self._term = text
        elif tag == "dd":
            self.facts.append((self._term, text))
        elif tag == "h2":
            self.facts.append(("section", text))
        elif tag in {"th", "td"}:
            self._row.append(text)
        elif tag == "tr" and not self._header:
            self._header = self._row
        elif tag == "tr":
            self.facts.extend(row_facts(self._header, self._row, f"{self._caption}: "))


def row_facts(header: list[str], row: list[str], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield a table's row as one fact: its first cell, and the others with their columns' names, in any order."""
    if "seconds" in row[0]:
        return
    others = [(name, cell) for name, cell in zip(header[1:], row[1:], strict=True) if not LEFT_OUT.search(name)]
    if len(header) == 2 and others:
        yield before + row[0], others[0][1]
    else:
        yield before + row[0], "; ".join(sorted(f"{name}: {cell}" for name, cell in others))


def markdown_facts(text: str) -> list[tuple[str, str]]:
    """Return what a Markdown text says, line by line: (before the colon or the first cell, the rest)."""
    found: list[tuple[str, str]] = []
    if text.startswith("---\n"):
        _, front, text = text.split("---\n", 2)
        found += [(key, json.dumps(value)) for key, value in yaml.safe_load(front).items()]
    header: list[str] = []
    for line in text.splitlines():
        plain = re.sub(r"[`\\]", "", line).strip()
        if not plain.startswith("|"):
            header = []
            key, colon, value = plain.removeprefix("- ").partition(": ")
            if plain and not plain.startswith(("#", "![")):
                found.append((key, value) if colon else ("", key))
            continue
        cells = [cell.strip() for cell in plain.strip("|").split("|")]
        if not header:
            header = cells
        elif set(plain) - set("|- :"):
            found.extend(row_facts(header, cells))
    return [(key, "" if key in OF_THE_MACHINE else value) for key, value in found]


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) of what JSON holds."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not LEFT_OUT.search(name) or find_metric(name):
                yield from flat(inner, f"{key} {name}".strip())
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for index, inner in enumerate(value):
            yield from flat(inner, f"{key} [{index}]")
    elif not HEX.fullmatch(str(value)):
        yield key, value


def journal_figures(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield (kind, step and path, value) of all that a journal records, but of a step the deterministic metrics alone."""
    for record in map(json.loads, lines):
        data = dict(record["data"])
        if record["kind"] == "start":
            continue
        place = [record["kind"], str(record["step"])]
        if record["kind"] == "eval":
            place += [str(data.get("policy")), data["set"]]
        if record["kind"] == "step":
            metrics = {key: value for key, value in data["metrics"].items() if find_metric(key).deterministic}
            data = {"metrics": metrics, **{key: value for key, value in data.items() if key != "metrics"}}
        yield from flat(data, " ".join(place))


def table_figures(folder: Path, pattern: str) -> Iterator[tuple[str, Any]]:
    """Yield (file and column, all values from the first row to the last) of tables in a folder."""
    for path in sorted(folder.glob(pattern)):
        table = pandas.read_parquet(path)
        if "outcome" in table:
            table = table[~table["outcome"].str.contains("seconds")]
        for column in table.columns:
            if not LEFT_OUT.search(column) or find_metric(column):
                values = table[column].tolist()
                yield f"{path.parent.name}/{path.stem} {column}", [None if pandas.isna(value) else value for value in values]


def run_commands(folder: Path) -> tuple[Any, Any]:
    """Make the run, the sweep and the export in a folder; return what `report` and `compare` print.

    Raises:
        RuntimeError: a command failed.
    """
    cache = Path(os.environ.get("GRPO_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-flow")
    (cache / "models").mkdir(parents=True, exist_ok=True)
    (folder / "cache").mkdir()
    (folder / "cache" / "models").symlink_to((cache / "models").resolve())  # evaluations of other days stay out
    (folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP, sort_keys=False, allow_unicode=True))
    grpo(folder, "train", *RUN, "--run-dir", "runs/one")
    grpo(folder, "sweep", "sweep.yaml", "--sweep-dir", "runs/sweep")
    grpo(folder, "export", "runs/one", "--to", "runs/exports/one")
    return json.loads(grpo(folder, "report", "runs/sweep", "--json")), json.loads(grpo(folder, "compare", *COMPARED, "--json"))


def collect(folder: Path, report: Any, comparison: Any) -> dict[str, Any]:
    """Return {file: its content} of what was made in a folder and printed."""
    run, sweep = folder / "runs" / "one", folder / "runs" / "sweep"
    with (run / "journal.jsonl").open() as journal:
        figures = [*journal_figures(journal)]
    tables = [*table_figures(run, "completions/*"), *table_figures(run, "eval/*.parquet"), *table_figures(run, "probe/*")]
    facts = markdown_facts("\n".join(json.loads((run / "summary.json").read_text())["facts"]))
    page = Tables((sweep / "report" / "report.html").read_text())
    results = [*table_figures(sweep, "results/runs.parquet"), *table_figures(sweep, "results/syncs.parquet")]
    return {
        "machine": machine(),
        "run": keyed([*figures, *tables]),
        "run_report": clean_facts(folder, facts),
        "sweep": {"answer": report["answer"], **keyed([*results, *table_figures(sweep, "report/*.parquet")])},
        "sweep_report": clean_facts(folder, page.facts),
        "comparison": dict(flat(reported(comparison))),
        "card": clean_facts(folder, markdown_facts((folder / "runs" / "exports" / "one" / "README.md").read_text())),
    }


def reported(comparison: dict[str, Any]) -> dict[str, Any]:
    """Return a comparison without metrics of which only the journal is recorded."""

    def known(values: dict[str, Any]) -> dict[str, Any]:
        return {key: values[key] for key in CURVE_KINDS if key in values}

    runs = [{**run, "curves": known(run["curves"])} for run in comparison["runs"]]
    runs = [{key: value for key, value in run.items() if key != "setting"} for run in runs]
    return {**comparison, "metrics": known(comparison["metrics"]), "runs": runs}


def keyed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return {key: value}; no key may hide another.

    Raises:
        ValueError: a key is there twice.
    """
    twice = sorted(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    if twice:
        raise ValueError(f"there twice: {', '.join(twice)}")
    return dict(pairs)


def machine() -> dict[str, str]:
    """Return what decides how figures are rounded here."""
    fields = re.findall(r"^(model name|cpu family|model|stepping|flags)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    facts = dict(fields)
    flags = {flag for flag in facts.pop("flags", "").split() if flag.startswith(("avx", "amx", "fma"))}
    return {"processor": ", ".join([*facts.values(), *sorted(flags)]), "torch": version("torch")}


def clean_facts(folder: Path, facts: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return facts in order, without the folder's name, ids and digests; what is a link or an id alone is left out."""
    cleaned = {(key, HEX.sub("", value).replace(str(folder), "")) for key, value in facts if not LEFT_OUT.search(key)}
    return [list(fact) for fact in sorted(cleaned)]


def grpo(folder: Path, *words: str) -> str:
    """Run `grpo` in a folder as a user would; return what it printed."""
    ours = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "true", "PWD": str(folder)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_TRACKING", "GRPO_"))}
    environment = {**kept, **ours, "GRPO_CACHE": str(folder / "cache"), "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-m", "flows.cli", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"grpo {' '.join(words)} ended with {done.returncode}:\n{done.stderr}{done.stdout}")
    return done.stdout


def same(recorded: Any, made: Any, exact: bool) -> bool:
    """Tell whether two values are the same: figures to the last bit or nearly, all else wholly."""
    if isinstance(recorded, list) and isinstance(made, list) and len(recorded) == len(made):
        return all(same(*pair, exact) for pair in zip(recorded, made, strict=True))
    if not {type(recorded), type(made)} <= {int, float} or recorded == made:
        return bool(recorded == made)
    if math.isnan(recorded) or math.isnan(made) or exact:
        return math.isnan(recorded) and math.isnan(made)
    return math.isclose(recorded, made, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def value_differences(recorded: dict[str, Any], made: dict[str, Any], exact: bool) -> Iterator[str]:
    """Yield the keys whose values are not the same, with both; of columns their rows."""
    for key in sorted(recorded.keys() | made.keys()):
        ours, theirs = made.get(key, "(missing)"), recorded.get(key, "(missing)")
        if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
            pairs = zip(theirs, ours, strict=True)
            rows = [(f"{key} [{row}]", *pair) for row, pair in enumerate(pairs) if not same(*pair, exact)]
            yield from (f"{place}: recorded {before!r}, made {after!r}" for place, before, after in rows)
        elif not same(theirs, ours, exact):
            yield f"{key}: recorded {theirs!r}, made {ours!r}"


def fact_differences(recorded: list[list[str]], made: list[list[str]]) -> Iterator[str]:
    """Yield the keys whose facts are not the same, with those that one side alone has."""
    lost, new = (Counter(map(tuple, one)) - Counter(map(tuple, other)) for one, other in ((recorded, made), (made, recorded)))
    for key in sorted({key for key, _ in (*lost, *new)}):
        before, after = ([value for name, value in side if name == key] for side in (lost, new))
        yield f"{key}: recorded {'; '.join(before) or '(missing)'!r}, made {'; '.join(after) or '(missing)'!r}"


def differences(recorded: dict[str, Any], made: dict[str, Any]) -> list[str]:
    """Return what differs between {file: content} and another: file, key, both values."""
    exact = recorded["machine"] == made["machine"]
    told: list[str] = []
    for name in sorted((recorded.keys() | made.keys()) - {"machine"}):
        before, after = recorded[name], made[name]
        found = fact_differences(before, after) if isinstance(before, list) else value_differences(before, after, exact)
        told += [f"{name}.json: {line}" for line in found]
    return told


def read(folder: Path) -> dict[str, Any]:
    """Return {file: content} of a folder that `write` wrote."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def write(folder: Path, content: dict[str, Any]) -> None:
    """Write {file: content}, a line for each key or fact."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in content.items():
        lines = [json.dumps(fact, ensure_ascii=False) for fact in value]
        if isinstance(value, dict):
            lines = [
                f"{key}: {json.dumps(inner, ensure_ascii=False)}" for key, inner in zip(lines, value.values(), strict=True)
            ]
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        (folder / f"{name}.json").write_text(opening + "\n" + ",\n".join(lines) + "\n" + closing + "\n")


def main() -> int:
    """Make everything again and compare or write it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.witness", description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write what was made there and compare nothing")
    write_to = parser.parse_args().write
    with tempfile.TemporaryDirectory(prefix="grpo-witness-") as name:
        folder = Path(name).resolve()
        made = collect(folder, *run_commands(folder))
    if write_to is not None:
        write(write_to, made)
        return 0
    recorded = read(DATA)
    told = differences(recorded, made)
    how = (
        "to the last bit"
        if recorded["machine"] == made["machine"]
        else "within 1e-5, as the data are of another kind of machine"
    )
    sys.stdout.writelines(f"{line}\n" for line in told[:SHOWN])
    sys.stdout.write(f"{len(told)} differences ({how})\n")
    return int(bool(told))


if __name__ == "__main__":
    sys.exit(main())
