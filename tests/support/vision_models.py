"""Tiny folders of models that read images, with random weights: two layers of the tower and two of the decoder, no hub."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from tests.model_folders import SIZES

CHARACTERS = " \n" + "".join(map(chr, range(33, 127)))
SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
ROWS_AND_COLUMNS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
TILES = [[32, 64], [64, 32], [64, 64]]
SIDE, PATCH = 32, 8
"""Pixels of what the towers with images of one size take, and of a patch of it."""
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": PATCH,
}
LISTS = {**VISION, "image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]}
QWEN = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32}
SQUARE = {"size": {"height": SIDE, "width": SIDE}}
CROPPED = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
OF_LLAVA = {"patch_size": PATCH, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
EIGHT = {**SIZES, "head_dim": 8}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}PLACE"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of model: what it is made of, as transformers' classes take it."""

    processor: str
    image_processor: str
    place: str = "<image>"
    """Stands for an image in a text."""
    text: dict[str, Any]
    vision: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    of_images: dict[str, Any] = field(default_factory=dict)
    """Settings of the image processor."""
    of_processor: dict[str, Any] = field(default_factory=dict)
    tokens: tuple[str, ...] = ("<image>",)
    """Special ones beside those of every tokenizer; the first takes the place of a feature."""
    names: dict[str, str] = field(default_factory=dict)
    """What the tokenizer calls them."""


LLAMA, QWEN2 = {"model_type": "llama", **SIZES}, {"model_type": "qwen2", **SIZES}
SPLIT = Kind(
    processor="Idefics3Processor",
    image_processor="Idefics3ImageProcessorPil",
    text=LLAMA,
    vision=VISION,
    config={"scale_factor": 2},
    of_images={"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}},
    of_processor={"image_seq_len": 4},
    tokens=("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *ROWS_AND_COLUMNS),
)
QWEN_VL = {
    "place": "<|vision_start|><|image_pad|><|vision_end|>",
    "image_processor": "Qwen2VLImageProcessorPil",
    "tokens": ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
}
KINDS: dict[str, Kind] = {
    "llava": Kind(
        processor="LlavaProcessor",
        image_processor="CLIPImageProcessorPil",
        text=LLAMA,
        vision={"model_type": "clip_vision_model", **VISION},
        of_images=CROPPED,
        of_processor=OF_LLAVA,
    ),
    "llava_next": Kind(
        processor="LlavaNextProcessor",
        image_processor="LlavaNextImageProcessorPil",
        text=LLAMA,
        vision={"model_type": "clip_vision_model", **VISION},
        config={"image_grid_pinpoints": TILES},
        of_images={**CROPPED, "image_grid_pinpoints": TILES},
        of_processor=OF_LLAVA,
    ),
    "llava_onevision": Kind(
        processor="LlavaOnevisionProcessor",
        image_processor="LlavaOnevisionImageProcessorPil",
        text=QWEN2,
        vision={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
        config={"image_grid_pinpoints": TILES},
        of_images={**SQUARE, "image_grid_pinpoints": TILES},
        of_processor={"num_image_tokens": (SIDE // PATCH) ** 2, "vision_feature_select_strategy": "full"},
        tokens=("<image>", "<video>"),
    ),
    "idefics3": SPLIT,
    "smolvlm": Kind(**{**vars(SPLIT), "image_processor": "SmolVLMImageProcessorPil"}),
    "internvl": Kind(
        processor="InternVLProcessor",
        image_processor="GotOcr2ImageProcessorPil",
        place="<IMG_CONTEXT>",
        text=QWEN2,
        vision={"model_type": "internvl_vision", **LISTS},
        config={"image_seq_length": 4},
        of_images={**SQUARE, "crop_to_patches": True, "min_patches": 1, "max_patches": 4},
        of_processor={"image_seq_length": 4},
        tokens=("<IMG_CONTEXT>", "<img>", "</img>", "<video>"),
        names={
            "context_image_token": "<IMG_CONTEXT>",
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "video_token": "<video>",
        },
    ),
    "qwen2_5_vl": Kind(
        processor="Qwen2_5_VLProcessor",
        text={**SIZES, "rope_parameters": ROPE, "num_key_value_heads": 2},
        vision={**QWEN, "patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]},
        of_images={"min_pixels": 28 * 28, "max_pixels": 4 * 56 * 56},
        **QWEN_VL,
    ),
    "qwen3_vl": Kind(
        processor="Qwen3VLProcessor",
        text={**EIGHT, "rope_parameters": {**ROPE, "mrope_interleaved": True}},
        vision={**QWEN, "patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
        of_images={"patch_size": 16, "min_pixels": 32 * 32, "max_pixels": 4 * 64 * 64},
        **QWEN_VL,
    ),
    "gemma3": Kind(
        processor="Gemma3Processor",
        image_processor="Gemma3ImageProcessorPil",
        place="<start_of_image>",
        text={
            **EIGHT,
            "query_pre_attn_scalar": 8,
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        vision={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
        config={"mm_tokens_per_image": 4},
        of_images=SQUARE,
        of_processor={"image_seq_length": 4},
        tokens=("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
        names={"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
    ),
    "paligemma": Kind(
        processor="PaliGemmaProcessor",
        image_processor="SiglipImageProcessorPil",
        text={"model_type": "gemma", **EIGHT},
        vision={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
        config={"projection_dim": 32, "hidden_size": 32},
        of_images={**SQUARE, "image_seq_length": (SIDE // PATCH) ** 2},
        names={"image_token": "<image>"},
    ),
}
"""By `model_type`."""
SHAPES = ((40, 40), (96, 56), (30, 64))
"""Width and height of the images of `picture`."""


def picture(number: int) -> Image.Image:
    """Return an image of noise, always the same one of a number; the sizes are those of `SHAPES`, in turn."""
    import numpy as np

    width, height = SHAPES[number % len(SHAPES)]
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8))


def write_vision_model(folder: Path, model_type: str, seed: int = 0, *, times: int = 1, **settings: Any) -> Path:
    """Write model, tokenizer and processor of a kind with random weights.

    Args:
        folder: to write.
        model_type: which kind.
        seed: of the weights.
        times: how often wider than tiny it is.
        settings: of its configuration.
    """
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    kind = KINDS[model_type]
    processor = _processor(kind)
    ids = dict(zip(kind.tokens, processor.tokenizer.convert_tokens_to_ids(list(kind.tokens)), strict=True))
    text = {**_wider(kind.text, times), "vocab_size": len(processor.tokenizer)}
    of_tokens = {"image_token_id": ids[kind.tokens[0]], "image_token_index": ids[kind.tokens[0]]}
    named = {"<start_of_image>": "boi_token_index", "<end_of_image>": "eoi_token_index", "<video>": "video_token_index"}
    named |= {"<|vision_start|>": "vision_start_token_id", "<|vision_end|>": "vision_end_token_id"}
    named |= {"<|video_pad|>": "video_token_id"}
    of_tokens |= {named[token]: number for token, number in ids.items() if token in named}
    config = AutoConfig.for_model(
        model_type, text_config=text, vision_config=_wider(kind.vision, times), **{**kind.config, **of_tokens, **settings}
    )
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():  # as they begin, weights are so small that an image hardly changes what is predicted
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.mul_(4)
                if not weights.any():  # Gemma 3's projector: every image would be the same to it
                    weights.normal_(std=0.1)
    model.generation_config.eos_token_id = SPECIAL.index("<eos>")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _wider(sizes: dict[str, Any], times: int) -> dict[str, Any]:
    wide = ("hidden_size", "intermediate_size", "out_hidden_size", "max_position_embeddings")
    wider = {key: value * times if key in wide else value for key, value in sizes.items()}
    if rope := wider.get("rope_parameters"):  # sections of half a head
        wider["rope_parameters"] = {**rope, "mrope_section": [times * side for side in rope["mrope_section"]]}
    return wider


def _processor(kind: Kind) -> Any:
    import transformers

    from grpo_core.policy.processor import without_video

    images = getattr(transformers, kind.image_processor)(**kind.of_images)
    template = TEMPLATE.replace("PLACE", kind.place)
    make = without_video(getattr(transformers, kind.processor))
    return make(image_processor=images, tokenizer=_tokenizer(kind), chat_template=template, **kind.of_processor)


def _tokenizer(kind: Kind) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*SPECIAL, *CHARACTERS]
    tokenizer = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in kind.tokens])
    special = dict(zip(("pad_token", "eos_token", "bos_token", "unk_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **special,
        extra_special_tokens=kind.names,
        chat_template=TEMPLATE.replace("PLACE", kind.place),
    )


def question(model_type: str, images: int, text: str = "what is this?") -> str:
    """Return a text that asks about so many images."""
    return "".join([KINDS[model_type].place, " "] * images) + text


def pictures(numbers: Sequence[int]) -> list[Image.Image]:
    """Return the images of these numbers."""
    return [picture(number) for number in numbers]
