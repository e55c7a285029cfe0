"""How far runs repeat, and what decides it: the sampler, the type, and whether its probabilities enter the loss."""

from typing import Any

import pytest

from grpo_core.config import RunConfig, apply_overrides, check_consistency, validate_config
from grpo_core.config.derived import repeatability, sampler_treatment
from grpo_core.run.reproduction import JournalComparison, Reproduction, compare_journals, compare_means
from tests.unit.test_comparison import step

VLLM = {"rollout.engine": "vllm"}
FP32, BF16 = {**VLLM, "model.dtype": "float32"}, {**VLLM, "model.dtype": "bfloat16"}


def config(**overrides: Any) -> RunConfig:
    return validate_config(apply_overrides({}, overrides))


@pytest.mark.parametrize(
    ("overrides", "treatment", "words"),
    [
        ({}, "none", "bit for bit"),
        ({"model.dtype": "bfloat16"}, "none", "bit for bit"),
        ({"loss.sampler_correction": "mask"}, "mask", "bit for bit"),
        (FP32, "none", "the same tokens"),
        ({**FP32, "loss.sampler_correction": "truncate"}, "truncate", "statistics alone"),
        (BF16, "truncate", "statistics alone"),
        ({**BF16, "loss.sampler_correction": "none"}, "none", "statistics alone"),
        ({**BF16, "loss.sampler_correction": "mask", "loss.sampler_level": "sequence"}, "mask", "statistics alone"),
        ({**BF16, "loss.sampler_level": "sequence", "loss.sampler_bound": 3.0}, "truncate", "statistics alone"),
    ],
)
def test_the_sampler_and_the_type_decide_how_far_a_run_repeats(overrides: Any, treatment: str, words: str) -> None:
    run = config(**overrides)
    assert sampler_treatment(run) == treatment
    assert words in repeatability(run).what
    assert repeatability(run).is_exact is ("statistics" not in words)
    assert any("statistics alone" in warning for warning in check_consistency(run)) is ("statistics" in words)


def reproduction(before: list[Any], now: list[Any], **overrides: Any) -> Reproduction:
    promise = repeatability(config(**overrides))
    journal: JournalComparison = compare_journals(before, now, promise.unlike)
    means = compare_means(before, now)
    return Reproduction(inputs=(), journal=journal, final=None, same_weights=None, promise=promise, means=means)


def test_a_reproduction_is_judged_by_what_such_a_run_promises() -> None:
    before = [step(number, reward__mean=0.4, kl__sampler__k3=1e-11) for number in (1, 2)]
    rounding = [step(number, reward__mean=0.4, kl__sampler__k3=2e-11) for number in (1, 2)]
    other = [step(number, reward__mean=0.5, kl__sampler__k3=2e-11) for number in (1, 2)]
    assert not reproduction(before, rounding).is_identical
    assert reproduction(before, rounding, **FP32).is_identical
    assert reproduction(before, other, **FP32).is_identical is False
    found = reproduction(before, other, **BF16)
    assert found.is_identical is None
    assert found.facts()[0] == "other tokens, as expected; compared are the means over 2 steps"
    assert "reward/mean over 2 steps: 0.4 then, 0.5 now (difference 0.1, standard error 0)" in found.facts()
    assert reproduction(before, other[:1], **BF16).is_identical is False  # a step is missing


def test_other_processes_round_otherwise() -> None:
    several, several_fp32 = (repeatability(config(**{"training.processes": 4}, **of)) for of in ({}, FP32))
    for promise in (several, several_fp32):
        assert promise.what.endswith("; with other training.processes or training.shards up to rounding")
        assert promise.is_exact
    assert several.what.startswith("bit for bit, on the same kind of machine with as many threads;")
    assert several_fp32.unlike == repeatability(config(**FP32)).unlike
    assert repeatability(config(**{"training.processes": 4}, **BF16)) == repeatability(config(**BF16))
    assert repeatability(config(), [(1, 1), (1, 1)]) == repeatability(config())
    for sessions in ([(1, 1), (2, 2)], [(2, 1), (2, 2)]):
        assert repeatability(config(), sessions).what.startswith("up to rounding")
        assert repeatability(config(**BF16), sessions) == repeatability(config(**BF16))
