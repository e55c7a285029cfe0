"""Settings of public runs (`tests/data/public`), written as the files that they were read from."""

import json
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "data" / "public"


def public_files() -> list[dict[str, Any]]:
    """Return every record, in the order of the files."""
    return [json.loads(line) for path in sorted(FOLDER.glob("*.jsonl")) for line in path.read_text().splitlines()]


def label(record: dict[str, Any]) -> str:
    """Return what a test of a record is called."""
    return f"{record['repository']}/{record['path']}"


def write_file(folder: Path, record: dict[str, Any]) -> Path:
    """Write a record as YAML or as a shell script; return the path."""
    if "values" in record:
        path = folder / "settings.yaml"
        repeated = {key: record["values"][key] for key in record.get("twice", ())}
        texts = (yaml.safe_dump(values, sort_keys=False) for values in (record["values"], repeated) if values)
        path.write_text("".join(texts))
        return path
    path = folder / "run.sh"
    command = " \\\n    ".join(record["command"])
    path.write_text("\n".join(["#!/bin/bash", *record["variables"], command, ""]))
    return path
