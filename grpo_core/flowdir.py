"""What the folder of a run and the folder of a sweep have in common: each is made, held and tracked by one flow."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FlowDir:
    """Paths of what a flow leaves in its folder."""

    path: Path

    @property
    def lock_file(self) -> Path:
        """Locked by the flow that works here."""
        return self.path / "lock"

    @property
    def flow_run_file(self) -> Path:
        """Id of the Prefect flow run that made the folder: its retries go on here."""
        return self.path / "flow_run"

    @property
    def tracking_file(self) -> Path:
        """Where the run or sweep is tracked: MLflow's store and run id."""
        return self.path / "tracking.json"
