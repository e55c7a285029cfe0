"""The page of a comparison: one HTML file with plotly and all figures inside, which needs no network and no server."""

import base64
import json
from dataclasses import asdict
from functools import cache
from typing import Any

from markupsafe import Markup

from grpo_core.compare.comparison import RunComparison
from grpo_core.compare.panels import panels_with, sync_segments
from grpo_core.compare.tables import page_sections
from grpo_core.pages.environment import page_environment
from grpo_core.run.curves import AFTER_STEP
from grpo_core.run.figures import SMOOTHED

MOST_BANDS = 6
"""Runs whose standard errors are shaded on the page, where others can be hidden."""
WORDS = (
    "Drag in a diagram to zoom; all diagrams show the same steps. A double click shows everything again. Click a run to hide "
    "or show it, double-click it to see it alone. A dotted vertical line is a reference sync, in the colour of its run; runs "
    "that sync after the same step share the line's height."
)


def render_comparison(
    comparison: RunComparison, reload_seconds: float | None = None, places_picture: bytes | None = None
) -> str:
    """Return the page as HTML.

    Args:
        comparison: what it shows.
        reload_seconds: how often the page loads itself again, keeping zoom and hidden runs; None = never.
        places_picture: PNG of where each run's drift is; None = no run was probed.
    """
    document = comparison.document
    drawing = {
        "panels": [asdict(panel) for panel in panels_with(document["metrics"])],
        "segments": sync_segments([run["syncs"]["steps"] for run in document["runs"]]),
        "after_step": AFTER_STEP,
        "smoothed": SMOOTHED,
        "most_bands": MOST_BANDS,
        "reload_seconds": reload_seconds,
    }
    template = page_environment("grpo_core.compare").get_template("compare.html.j2")
    return template.render(
        comparison=comparison,
        words=WORDS,
        sections=page_sections(comparison),
        reload_seconds=reload_seconds,
        places=base64.b64encode(places_picture).decode() if places_picture else "",
        data=Markup(_for_script({"document": document, "drawing": drawing})),
        plotly=Markup(_plotly()),
    )


def _for_script(value: Any) -> str:
    r"""Return JSON that cannot end the element of a page in which it stands, whatever texts it holds.

    >>> print(_for_script({"name": "</script><!--"}))
    {"name": "\u003c/script\u003e\u003c!--"}
    """
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _plotly() -> str:
    """Return plotly's program, as its package has it."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
