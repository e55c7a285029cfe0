"""Whether two runs are the same, bit for bit: their newest checkpoints and all deterministic figures of their journals."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
import torch
from safetensors.torch import load_file

from grpo_core.metrics import find_metric
from grpo_core.policy.saved import list_checkpoints
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record, read_journal, supersede


def differences(witness: RunDir, other: RunDir) -> list[str]:
    """Return in words all that differs, the earliest figure first; empty = the runs are equal."""
    return [
        *journal_differences(read_journal(witness.journal_file), read_journal(other.journal_file)),
        *superseded_differences(read_journal(witness.journal_file), raw_records(other.journal_file)),
        *numbering_differences(raw_records(other.journal_file)),
        *table_differences(witness, other),
        *checkpoint_differences(list_checkpoints(witness.checkpoints)[-1], list_checkpoints(other.checkpoints)[-1]),
    ]


def journal_differences(witness: Iterable[Record], other: Iterable[Record]) -> list[str]:
    """Compare the figures of steps, syncs and evaluations; each has to be there once."""
    expected, found = list(map(_figures, _compared(witness))), list(map(_figures, _compared(other)))
    names = [_name(figures) for figures in found]
    wanted = [_name(figures) for figures in expected]
    if names != wanted:
        first = next((pair for pair in zip(names, wanted, strict=False) if pair[0] != pair[1]), None)
        where = f"{first[0]} instead of {first[1]}" if first else f"{len(names)} records instead of {len(wanted)}"
        return [f"journal: other records: {where}"]
    return [line for left, right in zip(expected, found, strict=True) for line in unequal(_name(left), left, right)]


def superseded_differences(witness: Iterable[Record], raw: Sequence[Record]) -> list[str]:
    """Compare also what a later resume took back: it was computed from the same state, so it is the same."""
    expected = {_name(figures): figures for figures in map(_figures, _compared(witness))}
    kept = {record.seq for record in supersede(list(raw))}
    taken_back = [_figures(record) for record in _compared(raw) if record.seq not in kept]
    lines = []
    for figures in taken_back:
        name = _name(figures)
        if name not in expected:
            lines.append(f"journal: superseded {name}: the witness has none")
        else:
            lines += unequal(f"superseded {name}", expected[name], figures)
    return lines


def numbering_differences(raw: Sequence[Record]) -> list[str]:
    """Compare the numbers of the records with their lines."""
    wrong = next((number for number, record in enumerate(raw) if record.seq != number), None)
    return [] if wrong is None else [f"journal line {wrong + 1}: seq {raw[wrong].seq}"]


def raw_records(path: Path) -> list[Record]:
    """Return every whole line of a journal, superseded or not."""
    return [Record(**json.loads(line)) for line in path.read_bytes().split(b"\n")[:-1]]


def table_differences(witness: RunDir, other: RunDir) -> list[str]:
    """Compare the tables of completions and of the probe."""
    return [line for folder in ("completions", "probe") for line in _tables_in(folder, witness, other)]


def _tables_in(folder: str, witness: RunDir, other: RunDir) -> list[str]:
    names, found = (sorted(path.name for path in (run.path / folder).glob("*")) for run in (witness, other))
    if names != found:
        return [f"{folder}: {found} instead of {names}"]
    tables = ((name, *(pandas.read_parquet(run.path / folder / name) for run in (witness, other))) for name in names)
    return [f"{folder}/{name} differs" for name, left, right in tables if not left.equals(right)]


def checkpoint_differences(witness: Path, other: Path) -> list[str]:
    """Compare weights, both references, optimizer and counters of two checkpoints bit for bit."""
    if witness.name != other.name:
        return [f"newest checkpoint: {other.name} instead of {witness.name}"]
    names = sorted(str(path.relative_to(witness)) for path in witness.rglob("*.safetensors"))
    found = sorted(str(path.relative_to(other)) for path in other.rglob("*.safetensors"))
    if names != found:
        return [f"{other.name}: {found} instead of {names}"]
    lines = [line for name in names for line in unequal(name, load_file(witness / name), load_file(other / name))]
    saved = [torch.load(folder / "optimizer.pt", weights_only=True) for folder in (witness, other)]
    states = [json.loads((folder / "state.json").read_text()) for folder in (witness, other)]
    return [*lines, *unequal("optimizer.pt", *saved), *unequal("state.json", *states)]


def unequal(name: str, left: Any, right: Any) -> Iterator[str]:
    """Yield where two nests of mappings, sequences, tensors and numbers differ: -0.0 is not 0.0, NaN is NaN."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted(left.keys() | right.keys(), key=str):
            if key in left and key in right:
                yield from unequal(f"{name}: {key}", left[key], right[key])
            else:
                yield f"{name}: {key} is only in {'the witness' if key in left else 'the run'}"
    elif isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        if left.dtype != right.dtype or left.shape != right.shape:
            yield f"{name}: {right.dtype} {tuple(right.shape)} instead of {left.dtype} {tuple(left.shape)}"
        elif not torch.equal(_bits(left), _bits(right)):
            yield f"{name}: {int((left != right).sum())} of {left.numel()} numbers differ"
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) == len(right):
        for index, pair in enumerate(zip(left, right, strict=True)):
            yield from unequal(f"{name}: {index}", *pair)
    elif type(left) is not type(right) or repr(left) != repr(right):
        yield f"{name}: {right!r} instead of {left!r}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _compared(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.kind in ("step", "ref_sync", "eval")]


def _figures(record: Record) -> dict[str, Any]:
    """Return the record without its time and number, and without the figures that need not repeat."""
    data = dict(record.data)
    if "metrics" in data:
        data["metrics"] = {key: float(value) for key, value in data["metrics"].items() if _is_deterministic(key)}
    return {"kind": record.kind, "step": record.step, "data": data}


def _is_deterministic(key: str) -> bool:
    metric = find_metric(key)
    return metric is None or metric.deterministic


def _name(figures: Mapping[str, Any]) -> str:
    return f"{figures['kind']} {figures['step']}"
