"""Types of flow parameters: the server checks them before it makes a run, and the UI's form shows a field for each.

Their descriptions are in the flows' docstrings, where Prefect reads them. None means: as the preset says.
"""

from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema

from grpo_core.config.presets import SWEEPS, preset_names

# The text comes first: Prefect's older page has the cursor jump to the first field of a type.
_PATH = {"title": "Path of a file", "type": "string", "minLength": 1}

Name = Annotated[str, Field(min_length=1)]
Config = Annotated[str, WithJsonSchema({"anyOf": [_PATH, {"title": "Preset", "type": "string", "enum": preset_names()}]})]
SweepFile = Annotated[
    str,
    WithJsonSchema({"anyOf": [_PATH, {"title": "File in configs/sweeps/", "type": "string", "enum": preset_names(SWEEPS)}]}),
]
NonNegativeFloat = Annotated[float, Field(ge=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
Overrides = dict[str, Any]
NO_OVERRIDES: Final[Overrides] = {}
"""A default that the form shows as `{}`, ready to be filled; nothing writes to it."""
NAME_KEY = {"name": "tracking.run_name"}
"""The parameter `name` of flows that make a run, and its key."""
