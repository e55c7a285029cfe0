"""The only writer to MLflow: a run is opened before anything costly, fed by the monitor, and ended whatever happens.

`store` is where it is, `opening` what a run's page shows first, `shipper` how the journal gets there, `training` the tasks.
"""

from tasks.tracking.shipper import Shipper
from tasks.tracking.store import TrackedRun
from tasks.tracking.training import end_tracking, open_tracking, track_inputs, track_results

__all__ = ["Shipper", "TrackedRun", "end_tracking", "open_tracking", "track_inputs", "track_results"]
