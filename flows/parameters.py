"""Parameters that flows share: typed, bounded and described, so that the UI's form explains itself."""

from typing import Annotated, Any

from pydantic import Field

Config = Annotated[
    str,
    Field(min_length=1, description="Name of a preset (`quickstart`: a file in `configs/`), or path of a YAML file."),
]
Beta = Annotated[
    float | None,
    Field(ge=0, description="`loss.beta`, the weight of the KL term; 0 = no KL in the loss (it is measured all the same)."),
]
GroupSize = Annotated[int | None, Field(ge=1, description="`rollout.group_size`, G: completions of one prompt.")]
RefSyncSteps = Annotated[
    int | None,
    Field(ge=0, description="`reference.sync_steps`: the reference becomes the policy every so many steps; 0 = never."),
]
Seed = Annotated[int | None, Field(ge=0, description="`training.seed`: prompt order and sampling.")]
Overrides = Annotated[
    dict[str, Any] | None,
    Field(description='Any other keys of the configuration, for example {"training.steps": 20, "optimizer.lr": 2e-6}.'),
]
RunDirectory = Annotated[str | None, Field(description="Folder of the run; left out: a new one under `runs/`.")]
