"""The tables of the documentation are those of the code. `make docs` writes them."""

import os
import re
from pathlib import Path

import pytest

from grpo_core.algorithm import gradients
from grpo_core.interop import option_table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "algorithm.md"
TABLES = {"gradients": gradients.gradient_table, "options": option_table.markdown_table}


def segment(name: str) -> re.Pattern[str]:
    """Match what stands between the marks of a table."""
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- /{name} -->)", re.DOTALL)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_the_codes(name: str) -> None:
    wanted = TABLES[name]() + "\n"
    if os.environ.get("GRPO_WRITE_DOCS"):
        PAGE.write_text(segment(name).sub(lambda found: found[1] + wanted + found[3], PAGE.read_text()))
    found = segment(name).search(PAGE.read_text())
    assert found is not None
    assert found[2] == wanted


def test_every_key_of_the_algorithm_has_its_names_elsewhere() -> None:
    assert option_table.NAMES.keys() == option_table.algorithm_keys().keys()


def test_names_in_trl_are_names_in_trl() -> None:
    from trl.trainer.grpo_config import GRPOConfig

    names = {name for cell, _, _ in option_table.NAMES.values() for name in re.findall(r"`([a-z_0-9]+)`", cell)}
    fields = GRPOConfig.__dataclass_fields__.keys() | {"get_soft_overlong_punishment"}
    assert names - fields == set()


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
