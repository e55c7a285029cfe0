"""Types of flow parameters: the server checks them before it makes a run, and the UI's form shows a field for each.

Their descriptions are in the flows' docstrings, where Prefect reads them. None means: as the preset says.
"""

from typing import Annotated, Any, Final

from pydantic import Field

Name = Annotated[str, Field(min_length=1)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
Overrides = dict[str, Any]
NO_OVERRIDES: Final[Overrides] = {}
"""A default that the form shows as `{}`, ready to be filled; nothing writes to it."""
