"""Names of evaluation sets: the `<set>` of `eval/<set>/...`."""

import re
from pathlib import Path

HELD_OUT = "heldout"
"""The evaluation set that every run has: the held-out split of its own data."""
HELD_OUT_SAMPLE = "heldout_sample"
"""The first `evaluation.every_num_prompts` of it: what is evaluated during training has a name, hence curves, of its own."""


def set_name(source: str) -> str:
    """Return the name of a data source as an evaluation set: part of a metric key, and never one of the names above.

    >>> set_name("reasoning_gym:chain_sum"), set_name("file:some/GSM8K-test.jsonl"), set_name("hub:openai/gsm8k")
    ('chain_sum', 'gsm8k_test', 'gsm8k')
    """
    kind, _, name = source.partition(":")
    last = Path(name).stem if kind == "file" else name.rsplit("/", maxsplit=1)[-1]
    found = re.sub(r"[^a-z0-9]+", "_", last.lower()).strip("_") or "data"
    return f"{found}_data" if found in (HELD_OUT, HELD_OUT_SAMPLE) else found
