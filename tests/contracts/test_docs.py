"""The tables of the documentation are those of the code. `make docs` writes them."""

import os
import re
from pathlib import Path

import pytest

from grpo_core.config import RunConfig
from grpo_core.config.limits import FIXED, FIXED_KL
from grpo_core.config.loading import known_keys
from grpo_core.interop.conversion import SYSTEMS
from grpo_core.interop.trl import TRL
from grpo_core.interop.trl_export import export_config
from tests.support.doc_pages import metrics_page, render_keys, render_names
from tests.support.kl_gradients import gradient_table
from tests.unit.test_gradients import NOISE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "algorithm.md"
TABLES = {
    "gradients": (PAGE, gradient_table),
    "names": (ROOT / "docs" / "importing.md", render_names),
}
"""{name: (page, its table)}."""


def segment(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- /{name} -->)", re.DOTALL)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_the_codes(name: str) -> None:
    page, render = TABLES[name]
    wanted = render() + "\n"
    if os.environ.get("GRPO_WRITE_DOCS"):
        page.write_text(segment(name).sub(lambda found: found[1] + wanted + found[3], page.read_text()))
    found = segment(name).search(page.read_text())
    assert found is not None
    assert found[2] == wanted


def test_the_page_of_keys_is_the_codes_and_has_them_all() -> None:
    page, wanted = ROOT / "docs" / "keys.md", render_keys()
    if os.environ.get("GRPO_WRITE_DOCS"):
        page.write_text(wanted)
    assert page.read_text() == wanted
    listed = {name.replace(".0.", ".*.") for name in re.findall(r"^\| `([\w.]+)` \|", wanted, re.MULTILINE)}
    sections = {*RunConfig.model_fields, "rollout.vllm"}
    assert known_keys().keys() - sections == listed - sections


def test_the_page_of_metrics_is_the_registrys() -> None:
    page, wanted = ROOT / "METRICS.md", metrics_page()
    if os.environ.get("GRPO_WRITE_DOCS"):
        page.write_text(wanted)
    assert page.read_text() == wanted


def test_the_noise_of_gradients_is_what_the_test_of_gradients_measures() -> None:
    for estimator, correction, plain, sharpened in NOISE:
        assert f"| `{estimator}` | `{correction}` | {plain:g} | {sharpened:g} |\n" in PAGE.read_text()


def test_every_key_of_the_algorithm_is_trls_or_refused_or_never_leaves_this_project() -> None:
    names = export_config(RunConfig())
    exported = {key for name in names if (rule := TRL.find_rule(name)) for key in rule.ours.split(", ")}
    own = {
        "rollout.max_prompt_tokens",
        "reference.kl_init_every",
        "reference.kl_full_every",
        "reference.distance_every",
        "probe.every_steps",
        "probe.num_prompts",
    }
    parts_of_refused_ones = {
        *("advantage.reward_shift", "advantage.reward_scale"),  # of reward_norm
        *("loss.sampler_level", "loss.sampler_bound"),  # of sampler_correction
        *(key for key in known_keys() if key.startswith(("loss.beta_control", "reference.sync_when"))),
    }
    groups = [exported, FIXED.keys(), FIXED_KL.keys(), own, parts_of_refused_ones]
    sections = ("rollout.", "advantage.", "filtering.", "loss.", "reference.", "probe.", "optimizer.")
    algorithm = {key for key in known_keys() if key.startswith(sections) and not key.startswith("rollout.vllm")}
    assert [key for key in algorithm if sum(key in group for group in groups) != 1] == []


def test_our_keys_in_the_tables_of_other_systems_exist() -> None:
    ours = {key for system in SYSTEMS.values() for rule in system.rules if rule.ours for key in rule.ours.split(", ")}
    assert ours - known_keys().keys() == {"rewards[].fn", "rewards[].weight", "rewards[].args"}


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
