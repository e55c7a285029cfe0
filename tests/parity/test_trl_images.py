"""Prompts with images on TRL's trainer: what it computes with our rows and processors, and what it is not given."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, PreTrainedModel
from trl import GRPOConfig, GRPOTrainer

from grpo_core.backends.trl_images import (
    MODELS,
    in_parts,
    padded_on_the_left,
    refuse_images,
    refuse_placeholders,
    rows_with_images,
    without_images,
)
from grpo_core.errors import TrainingError
from grpo_core.generation.sampler import SampledCompletions
from grpo_core.policy.processor import EncodedText, TextAndImages, load_processor
from grpo_core.types import Prompt
from tests.support.vision_models import KINDS, picture, write_vision_model

pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning"), pytest.mark.filterwarnings("ignore:.*rollout_func.*")]
IMAGES = {f"digest {number}": picture(number) for number in range(3)}
ASKED = ((("digest 0",), "what?"), (("digest 1", "digest 2"), "which is this one now?"))
COMPLETIONS = ((7, 9, 11), (20, 21), (30, 31, 32, 33), (40, 1))
"""Two of each prompt; none of these tokens stands for an image."""


def make_prompts(processor: TextAndImages) -> list[tuple[Prompt, EncodedText]]:
    """Return two prompts, of one image and of two, with what the processor makes of each alone."""
    made = []
    for number, (images, text) in enumerate(ASKED):
        parts = [*({"type": "image"} for _ in images), {"type": "text", "text": text}]
        content = ({"role": "system", "content": "be brief"}, {"role": "user", "content": parts})
        rendered = processor.processor.apply_chat_template(in_parts(content), add_generation_prompt=True, tokenize=False)
        encoded = processor.encode(rendered, [IMAGES[digest] for digest in images], add_special_tokens=False)
        prompt = Prompt(id=number, content=content, text=rendered, token_ids=encoded.token_ids, columns={}, images=images)
        made.append((prompt, encoded))
    return made


class Watched(GRPOTrainer):
    """Keeps the rows of its last pass and their log-probabilities."""

    rows: torch.Tensor
    logps: torch.Tensor

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **options: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*arguments, **options)
        self.rows, self.logps = arguments[1], found[0].detach()
        return found


def trained(folder: Path, model: PreTrainedModel, processor: Any, prompts: list[Prompt]) -> Watched:
    """Return TRL's trainer after a step with a learning rate of 0."""
    ids = [list(prompt.token_ids) for prompt in prompts for _ in range(2)]

    def roll_out(asked: list[Any], _: GRPOTrainer) -> dict[str, Any]:
        assert [without_images(messages) for messages in asked] == [in_parts(one.content) for one in prompts for _ in range(2)]
        logps = [[0.0] * len(tokens) for tokens in COMPLETIONS]
        return {"prompt_ids": ids, "completion_ids": [list(tokens) for tokens in COMPLETIONS], "logprobs": logps}

    arguments = GRPOConfig(
        output_dir=str(folder),
        num_generations=2,
        per_device_train_batch_size=4,
        max_steps=1,
        learning_rate=0.0,
        max_completion_length=8,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        shuffle_dataset=False,
        remove_unused_columns=False,
        activation_checkpointing=False,
    )
    trainer = Watched(
        model=model,
        reward_funcs=[lambda completions, **_: [float(index % 3) for index in range(len(completions))]],
        args=arguments,
        train_dataset=rows_with_images(prompts, IMAGES.__getitem__),
        processing_class=processor,
        rollout_func=roll_out,
    )
    trainer.train()
    return trainer


@torch.no_grad()
def alone(model: PreTrainedModel, processor: TextAndImages, made: list[tuple[Prompt, EncodedText]]) -> dict[Any, torch.Tensor]:
    """Return {completion: log-probabilities of its tokens} of a plain forward pass of each row alone."""
    found = {}
    for row, completion in enumerate(COMPLETIONS):
        prompt, encoded = made[row // 2]
        text = torch.tensor([[*prompt.token_ids, *completion]])
        types = (text == processor.placeholder_id).long()
        named = {"gemma3": "token_type_ids", "qwen2_5_vl": "mm_token_type_ids", "qwen3_vl": "mm_token_type_ids"}
        more = {named[model.config.model_type]: types} if model.config.model_type in named else {}
        logits = model(input_ids=text, **encoded.tensors, **more).logits[0, len(prompt.token_ids) - 1 : -1]
        found[completion] = logits.log_softmax(-1).gather(1, torch.tensor(completion).unsqueeze(1)).flatten()
    return found


def furthest(trainer: Watched, expected: dict[Any, torch.Tensor]) -> float:
    """Return the largest difference of a token's log-probability."""
    differences, width = [], trainer.logps.shape[1]
    for row, logps in zip(trainer.rows[:, -width:].tolist(), trainer.logps, strict=True):
        (tokens,) = [completion for completion in expected if tuple(row[: len(completion)]) == completion]
        differences.append(float((logps[: len(tokens)] - expected[tokens]).abs().max()))
    assert len(differences) == len(expected)
    return max(differences)


@contextlib.contextmanager
def opened(folder: Path, kind: str) -> Iterator[tuple[PreTrainedModel, TextAndImages]]:
    """Give a tiny model and its processor."""
    written = write_vision_model(folder / kind, kind)
    processor = load_processor(written)
    assert processor is not None
    yield AutoModelForImageTextToText.from_pretrained(written, dtype=torch.float32), processor


@pytest.mark.parametrize("kind", MODELS)
def test_trls_log_probabilities_are_those_of_each_row_alone(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, kind) as (model, processor):
        made = make_prompts(processor)
        trainer = trained(tmp_path, model, padded_on_the_left(processor.processor), [prompt for prompt, _ in made])
        assert furthest(trainer, alone(model.eval(), processor, made)) < 5e-6


def test_gemma_padded_on_the_right_is_what_the_comparison_finds(tmp_path: Path) -> None:
    with opened(tmp_path, "gemma3") as (model, processor):
        made = make_prompts(processor)
        processor.processor.tokenizer.padding_side = "right"
        trainer = trained(tmp_path, model, processor.processor, [prompt for prompt, _ in made])
        assert furthest(trainer, alone(model.eval(), processor, made)) > 1e-3


def prompt_of(number: int, images: tuple[str, ...], content: Any = ({"role": "user", "content": "why?"},)) -> Prompt:
    """Return a prompt."""
    return Prompt(id=number, content=content, text="why?", token_ids=(5,), columns={}, images=images)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_taken_or_refused_with_the_reason(kind: str) -> None:
    prompts = [prompt_of(0, ("a",)), prompt_of(1, ("b", "c"))]
    reasons = {"llava_onevision": "batch_num_images", "paligemma": "then they see later ones"}
    if kind in MODELS:
        refuse_images(kind, prompts)
    else:
        with pytest.raises(TrainingError, match=f"trl does not take images of a {kind} model: .*{reasons[kind]}"):
            refuse_images(kind, prompts)
    refuse_images(kind, [prompt_of(0, ()), prompt_of(1, ())])  # text alone is the model's and TRL's own affair


@pytest.mark.parametrize(
    ("kind", "prompts", "fault"),
    [
        ("unheard_of", [prompt_of(0, ("a",))], r"images of a unheard_of model: only those of gemma3, .* have been compared"),
        ("llava", [prompt_of(0, ("a",)), prompt_of(7, ())], "prompts without images among others, and prompt 7 has none"),
        ("llava", [prompt_of(0, ("a",), "<image>why?")], r"trl takes images with data\.chat_template true alone"),
    ],
)
def test_what_trl_cannot_do_with_images_is_refused(kind: str, prompts: list[Prompt], fault: str) -> None:
    with pytest.raises(TrainingError, match=fault):
        refuse_images(kind, prompts)


def test_a_sampled_placeholder_is_an_error_that_names_its_row() -> None:
    ids = torch.tensor([[4, 4, 4], [4, 9, 4], [9, 4, 4], [4, 4, 9]])
    completions = SampledCompletions(
        prompts=(prompt_of(3, ("a",)), prompt_of(8, ("b",))),
        group_size=2,
        completion_ids=ids,
        completion_mask=torch.tensor([[True, True, True], [True, False, False], [True, True, True], [True, True, True]]),
        sampling_per_token_logps=torch.zeros(4, 3),
    )
    with pytest.raises(TrainingError, match=r"2 of 4 completions of step 6: they hold token 9,.*completion 0 of prompt 8;"):
        refuse_placeholders(completions, 9, 6)
    refuse_placeholders(completions, 5, 6)
