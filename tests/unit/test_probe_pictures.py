"""The heat map of a probe has the journal's figures in the right cells, and one scale for all runs."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import pyplot

from grpo_core.run.curves import read_places
from grpo_core.run.figures import places_figure
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
OTHER = records_of({5: places(at0=1.6)})


def test_each_cell_is_the_figure_of_its_position_and_step():
    found = read_places(RUN)
    assert (list(found.columns), list(found.index)) == ([10, 20], ["0", "1", "2-3", "16-31"])
    np.testing.assert_array_equal(found, [[0.1, 0.4], [0.2, 0.5], [0.3, 0.6], [np.nan, 0.8]])


def test_the_picture_has_these_cells_and_all_runs_share_the_scale():
    figure = places_figure([("one", read_places(RUN)), ("two", read_places(OTHER))])
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title(loc="left") for axes in drawn] == ["one", "two"]
    image = drawn[0].images[0]
    assert image.get_array().filled(np.nan)[3, 1] == 0.8
    assert image.get_array().mask.tolist() == [[False, False], [False, False], [False, False], [True, False]]
    assert image.origin == "lower"  # the first position is the lowest row
    assert [label.get_text() for label in drawn[0].get_yticklabels()] == ["0", "1", "2-3", "16-31"]
    assert [label.get_text() for label in drawn[0].get_xticklabels()] == ["10", "20"]
    assert {axes.images[0].get_clim() for axes in drawn} == {(0.0, 1.6)}
    pyplot.close(figure)
