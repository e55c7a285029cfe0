"""The table of where the drift is has the journal's figures in the right cells."""

from collections.abc import Mapping, Sequence

import numpy as np

from grpo_core.run.curves import read_places
from grpo_core.run.journal import Record

TIME = "2026-11-26T00:00:00+00:00"


def records_of(figures: Mapping[int, Mapping[str, float]]) -> Sequence[Record]:
    return [
        Record(seq=number, time=TIME, kind="step", step=step, data={"metrics": dict(values)})
        for number, (step, values) in enumerate(figures.items())
    ]


def places(**nats: float) -> dict[str, float]:
    return {f"kl/probe/init_at_{name.removeprefix('at')}": value for name, value in nats.items()}


RUN = records_of({10: places(at0=0.1, at1=0.2, at2=0.3), 15: {}, 20: places(at0=0.4, at1=0.5, at2=0.6, at16=0.8)})


def test_each_cell_is_the_figure_of_its_position_and_step():
    found = read_places(RUN)
    assert (list(found.columns), list(found.index)) == ([10, 20], ["0", "1", "2-3", "16-31"])
    np.testing.assert_array_equal(found, [[0.1, 0.4], [0.2, 0.5], [0.3, 0.6], [np.nan, 0.8]])
