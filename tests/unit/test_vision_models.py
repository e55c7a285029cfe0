"""Models that read images: whatever is shared by rows, values and gradients are those of each row alone, by transformers."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_core.config import apply_overrides, validate_config
from grpo_core.errors import ModelError
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings, Stream
from grpo_core.machine.images import ImageFolder
from grpo_core.policy import vision
from grpo_core.policy.fast import path
from grpo_core.policy.fast.path import COMPLETIONS
from grpo_core.policy.forward import EncodedPrefix
from grpo_core.policy.loading import open_policy
from grpo_core.policy.policy import Policy
from grpo_core.types import Prompt
from tests.conftest import build_values
from tests.support.vision_models import KINDS, picture, pictures, question, write_vision_model

WITHOUT_PADDING = ("llava", "llava_next", "llava_onevision", "idefics3", "smolvlm", "internvl", "qwen2_5_vl")
"""Kinds whose prompts and completions are run side by side."""
SEEN = ((), (0,), (1, 2), (0,))
"""The images of each prompt, by number: none, one, two of other sizes, and one that another prompt has."""
TEXTS = ("2 + 3?", "what is this?", "which is larger, the first one or the second one?", "why?")
LENGTHS = (1, 9, 4, 2, 7, 3, 8, 5)
GROUP = 2
MOST_APART, MOST_OF_GRADIENT, FLOOR = 5e-6, 1e-4, 1e-3


@dataclass(frozen=True)
class Opened:
    """A policy of a kind, prompts with its tokens, and what transformers' processor makes of each."""

    kind: str
    policy: Policy
    prompts: tuple[Prompt, ...]
    given: tuple[dict[str, Tensor], ...]

    def completions(self) -> SampledCompletions:
        """Return completions of random tokens, none of them a placeholder."""
        drawn = torch.Generator().manual_seed(1)
        ids = torch.randint(4, 100, (GROUP * len(self.prompts), max(LENGTHS)), generator=drawn)
        mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)
        return SampledCompletions(
            prompts=self.prompts,
            group_size=GROUP,
            completion_ids=ids,
            completion_mask=mask,
            sampling_per_token_logps=torch.zeros(ids.shape),
        )

    def alone(self, completions: SampledCompletions, row: int) -> Tensor:
        """Return the log-probabilities of a completion by one plain pass of transformers over its row."""
        given, width = dict(self.given[row // completions.group_size]), int(completions.lengths()[row])
        tokens = completions.completion_ids[row, :width]
        prompt = given.pop("input_ids")
        ids = torch.cat([prompt, tokens.unsqueeze(0)], dim=1)
        fills = {"attention_mask": 1, "token_type_ids": int(self.kind == "paligemma"), "mm_token_type_ids": 0}
        for name in fills.keys() & given.keys():
            given[name] = torch.nn.functional.pad(given[name], (0, width), value=fills[name])
        given.pop("labels", None)
        logits = self.policy.model(input_ids=ids, use_cache=False, **given).logits[0, prompt.shape[1] - 1 : -1]
        return torch.log_softmax(logits, dim=-1).gather(1, tokens.unsqueeze(1)).squeeze(1)


def config_of(folder: Path, **settings: Any) -> Any:
    return validate_config(
        apply_overrides(build_values(folder), {name.replace("__", "."): one for name, one in settings.items()})
    )


def processor_of(policy: Policy) -> Any:
    assert policy.images is not None
    return policy.images.processor.processor


def encoded(kind: str, processor: Any, text: str, numbers: Sequence[int]) -> dict[str, Tensor]:
    asked = question(kind, len(numbers), text)
    if numbers:
        return dict(processor(text=[asked], images=[pictures(numbers)], return_tensors="pt"))
    given = dict(processor.tokenizer([asked], return_tensors="pt", return_token_type_ids=kind == "paligemma"))
    return given if kind == "paligemma" else {"input_ids": given["input_ids"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vision")


@pytest.fixture(scope="module")
def digests(folder: Path) -> list[str]:
    """Put images into the folder of a run; return their names there."""
    return [ImageFolder(folder / "images", 10**6).add(as_png(number)) for number in range(3)]


def as_png(number: int) -> bytes:
    with io.BytesIO() as file:
        picture(number).save(file, "PNG")
        return file.getvalue()


def opened_kind(folder: Path, digests: Sequence[str], kind: str, **settings: Any) -> Opened:
    place = folder / kind
    if not place.exists():
        write_vision_model(place, kind)
    policy = open_policy(place, config_of(place, **settings), images=folder / "images")
    processor = processor_of(policy)
    given = tuple(encoded(kind, processor, text, numbers) for text, numbers in zip(TEXTS, SEEN, strict=True))
    prompts = tuple(
        Prompt(
            id=number,
            content=text,
            text=text,
            token_ids=tuple(one["input_ids"][0].tolist()),
            columns={},
            images=tuple(digests[image] for image in numbers),
        )
        for number, (text, numbers, one) in enumerate(zip(TEXTS, SEEN, given, strict=True))
    )
    return Opened(kind, policy, prompts, given)


@pytest.fixture(params=KINDS, scope="module")
def opened(request: pytest.FixtureRequest, folder: Path, digests: list[str]) -> Opened:
    return opened_kind(folder, digests, request.param)


def furthest(values: Tensor, expected: Tensor) -> float:
    return float((values - expected).detach().abs().max())


def apart(opened: Opened, **how: Any) -> float:
    """Return by how much log-probabilities differ from those of rows alone, at most."""
    completions = opened.completions()
    policy = replace(opened.policy, path=replace(opened.policy.path, **how))
    with torch.no_grad():
        expected = torch.cat([opened.alone(completions, row) for row in range(completions.num_rows)])
        found = policy.forward(completions, range(completions.num_rows)).logps[completions.completion_mask]
    return furthest(found, expected)


def paths_of(opened: Opened) -> Iterator[Policy]:
    """Yield the policy in each way that it may be run in, with layers computed again and without."""
    for padded in {True, opened.policy.path.padded}:
        for recomputed in {False, opened.kind != "gemma3"}:
            yield replace(opened.policy, path=replace(opened.policy.path, padded=padded), recomputed=recomputed)


def test_values_and_gradients_are_those_of_each_row_alone(opened):
    assert opened.policy.path.padded == (opened.kind not in WITHOUT_PADDING)
    completions = opened.completions()
    mask = completions.completion_mask
    named = opened.policy.model.named_parameters()
    parameters = [weights for name, weights in named if not name.endswith("k_proj.bias")]  # theirs are 0 but for rounding
    weights = torch.linspace(-1, 2, int(mask.sum()))
    expected = torch.cat([opened.alone(completions, row) for row in range(completions.num_rows)])
    wanted = torch.autograd.grad((weights * expected).sum(), parameters, allow_unused=True)
    floor = FLOOR * max(float(one.abs().max()) for one in wanted if one is not None)
    for policy in paths_of(opened):
        found = policy.forward(completions, range(completions.num_rows)).logps[mask]
        assert furthest(found, expected) < MOST_APART
        gradients = torch.autograd.grad((weights * found).sum(), parameters, allow_unused=True)
        for one, other in zip(gradients, wanted, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert furthest(one, other) < MOST_OF_GRADIENT * max(floor, float(other.abs().max()))


@pytest.mark.parametrize("lean", [True, False])
def test_sampled_log_probabilities_are_those_of_each_row_alone(opened, lean):
    assert opened.policy.path.lean == (opened.kind not in {"gemma3", "paligemma"})
    if lean and not opened.policy.path.lean:
        pytest.skip("its layers are none of ours")
    assert sampled_apart(opened, lean=lean) < MOST_APART


def sampled_apart(opened: Opened, *, lean: bool) -> float:
    """Return the same of completions that are sampled, of which many end early; one that cannot be run alone is left out."""
    policy = replace(opened.policy, path=replace(opened.policy.path, lean=lean), eos_token_ids=tuple(range(4, 30)))
    completions = policy.sample(
        opened.prompts,
        SamplingSettings(group_size=6, max_completion_tokens=12),
        RandomKey(seed=1, stream=Stream.TRAIN, step=1),
    )
    assert policy.images is not None
    assert len({*completions.lengths().tolist()}) > 3
    rows = [
        row
        for row in range(completions.num_rows)
        if policy.images.processor.placeholder_id not in completions.completion_ids[row].tolist()
    ]
    assert len(rows) > completions.num_rows / 2
    with torch.no_grad():
        expected = torch.cat([opened.alone(completions, row) for row in rows])
    return furthest(completions.sampling_per_token_logps[rows][completions.completion_mask[rows]], expected)


def test_a_placeholder_that_the_policy_draws_is_a_token_like_others(folder, digests):
    opened = opened_kind(folder, digests, "qwen2_5_vl")
    completions = opened.completions()
    assert opened.policy.images is not None
    completions.completion_ids[:, 1] = opened.policy.images.processor.placeholder_id
    padded = replace(opened.policy, path=replace(opened.policy.path, padded=True))
    with torch.no_grad():
        found, expected = (one.forward(completions, range(8)).logps for one in (opened.policy, padded))
    assert furthest(found, expected) < MOST_APART
    with pytest.raises(ValueError, match="do not match"):
        opened.alone(completions, 2)


def test_positions_from_the_mask_are_found(folder, digests, monkeypatch):
    opened = opened_kind(folder, digests, "qwen2_5_vl")
    right = vision.ReadImages.of
    monkeypatch.setattr(vision.ReadImages, "of", lambda *given: replace(right(*given), positions=None, offset=None))
    assert apart(opened) > 0.01
    with pytest.raises(ModelError, match="other logits"):
        opened_kind(folder, digests, "qwen2_5_vl")


@pytest.mark.parametrize(("kind", "least"), [("qwen2_5_vl", 0.01), ("gemma3", 0.01), ("paligemma", 0.01)])
def test_types_of_tokens_that_are_missing_are_found(folder, digests, monkeypatch, kind, least):
    opened = opened_kind(folder, digests, kind)
    right = vision.ReadImages.of
    blind = {"positions": None} if kind == "qwen2_5_vl" else {}  # its positions are what it needs types for
    monkeypatch.setattr(vision.ReadImages, "of", lambda *given: replace(right(*given), types={}, **blind))
    assert apart(opened) > least
    with pytest.raises(ModelError, match="other logits"):
        opened_kind(folder, digests, kind)


@pytest.mark.parametrize("kind", ["qwen3_vl", "paligemma"])
def test_prompts_and_completions_side_by_side_are_refused_where_an_image_shows_that_they_differ(folder, digests, kind):
    opened = opened_kind(folder, digests, kind)
    assert "differ by" in opened.policy.path.reasons[COMPLETIONS]
    assert apart(opened, padded=False) > 0.01
    for dtype in ("float32", "bfloat16"):
        assert path.why_padded(opened.policy.model, dtype, opened.policy.images.of_other(picture(0))) is not None
        assert path.why_padded(opened.policy.model, dtype) is None  # without an image nobody sees it


def test_offsets_that_stay_when_rows_leave_are_found(folder, digests, monkeypatch):
    opened = opened_kind(folder, digests, "qwen2_5_vl")
    right = EncodedPrefix.keep

    def stale(self, rows):
        kept, leave = right(self, rows), len(rows) < len(self.mask)  # before, prompts are handed out to more rows
        return replace(kept, offset=self.offset[: len(rows)]) if leave else kept

    monkeypatch.setattr(EncodedPrefix, "keep", stale)
    assert sampled_apart(opened, lean=False) > 0.01
