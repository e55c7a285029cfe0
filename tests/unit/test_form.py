"""Prefect's form of each deployment: what is stored as its parameters' schema, and what the server makes of parameters."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import is_valid

from grpo_core.config.origin import preset_names

DEPLOYMENTS = yaml.safe_load((Path(__file__).parents[2] / "prefect.yaml").read_text())["deployments"]


def schema_of(entrypoint: str) -> dict[str, Any]:
    module, _, name = entrypoint.rpartition(".")
    return parameter_schema(getattr(importlib.import_module(module), name)).model_dump(exclude_unset=True)


@pytest.mark.parametrize("entrypoint", [deployment["entrypoint"] for deployment in DEPLOYMENTS])
def test_every_field_has_its_meaning_and_none_is_of_type_none(entrypoint: str) -> None:
    schema = schema_of(entrypoint)
    for name, field in schema["properties"].items():
        assert field["description"], name
        assert field.get("default", "") is not None, name
        kinds = field.get("anyOf", [field])
        assert all(kind["type"] in ("string", "number", "integer", "object", "boolean") for kind in kinds), name
    assert [field["position"] for field in schema["properties"].values()] == list(range(len(schema["properties"])))


def test_presets_are_choices_of_a_field_that_still_takes_a_path() -> None:
    field = schema_of("flows.train.grpo")["properties"]["config"]
    texts, presets = field["anyOf"]
    assert presets["enum"] == preset_names()
    assert "enum" not in texts
    assert field["default"] == "quickstart"


@pytest.mark.parametrize(
    ("parameters", "accepted"),
    [
        ({}, True),
        ({"config": "mine/run.yaml", "beta": 0.1}, True),
        ({"config": "sums_tiny_cpu", "ref_sync_steps": 0}, True),
        # What a client of before sends for a field that it leaves empty: the preset's value.
        ({"beta": None, "group_size": None, "ref_sync_steps": None, "seed": None, "run_dir": None}, True),
        ({"config": None}, False),
        ({"config": ""}, False),
        ({"config": 5}, False),
        ({"beta": -1}, False),
        ({"group_size": "8"}, False),
    ],
)
def test_what_the_server_accepts(parameters: dict[str, Any], accepted: bool) -> None:
    assert is_valid(parameters, schema_of("flows.train.grpo")) == accepted
