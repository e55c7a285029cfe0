"""A model made here from nothing that answers questions about pictures: `scratch:shapes`, as `scratch:sums` is for text.

It is a LLaVA of 291,000 weights: a CLIP tower over 16 patches of a 64x64 picture, and a Llama that writes words. It begins
random and is given a short supervised warm start on `where is the red square?`, whose answer is a box in pixels:
`[16, 24, 40, 48]`. It comes to find shapes and has a habit that costs the reward, a question mark behind most of its boxes:
what GRPO is to find out.

A picture holds one to three shapes on white, of different colours and kinds, with corners at multiples of `GRID`. It is drawn
and written as a PNG file by this module and no imaging library. So its digest is the same on every machine, and the warm start
can leave out the pictures that data preparation holds out (`is_held_out`).

This file and a build of torch decide the weights bit for bit; another processor may round otherwise, so a run records their
digest.
"""

import hashlib
import logging
import random
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerBase, ProcessorMixin

logger = logging.getLogger(__name__)

SHAPES = "scratch:shapes"
SIDE, GRID, PATCH = 64, 4, 16
"""Pixels: of a picture, between the places where a box can begin or end, and of a patch of the tower."""
COLOURS = {"red": (220, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 220), "yellow": (235, 200, 20)}
KINDS = ("square", "circle", "triangle")
GROUND = (255, 255, 255)
PALETTE = np.array([GROUND, *COLOURS.values()], dtype=np.uint8)
SIZES = (20, 24, 28, 32)
"""Widths of shapes, which are as high as they are wide."""
WHITE, DEVIATION = 1.0, 0.5
"""Of the processor. The ground is 0, so an empty patch is its position alone: the warm start takes half the steps for it."""
UNKNOWN, END, PICTURE = "<unk>", "<|end|>", "<image>"
"""Tokens 0 to 2; the second ends a completion and pads a batch, the third stands for a part of a picture."""
HABIT, HABIT_SHARE = " ?", 0.6
"""What stands behind this share of the taught answers."""
IGNORED = -100
"""The label of a token that the loss leaves out."""
HELD_OUT_SHARE, HOLD_OUT_SEED = 0.15, 0
"""Share of the pictures that the warm start never sees: those whose hash with the seed is lowest."""
HASHES = 2**256
TOWER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": PATCH,
}
TEXT: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.08,
}
WARM_UP_STEPS, BATCH_SIZE, LEARNING_RATE, BETAS, SEED = 350, 128, 5e-3, (0.9, 0.98), 0
"""Of the warm start by AdamW, whose rate rises for 50 steps and then falls linearly to 0."""

Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels; right and bottom are the first that are outside."""
Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Shape:
    """One shape of a picture."""

    colour: str
    kind: str
    box: Box


Scene = tuple[Shape, ...]


def draw_scene(random_numbers: random.Random) -> Scene:
    """Return one to three shapes that do not overlap; no two of them have the same colour or kind."""
    number = random_numbers.randint(1, 3)
    looks = zip(random_numbers.sample(list(COLOURS), number), random_numbers.sample(KINDS, number), strict=True)
    return tuple(Shape(colour, kind, box) for (colour, kind), box in zip(looks, _boxes(number, random_numbers), strict=True))


def _boxes(number: int, random_numbers: random.Random) -> list[Box]:
    """Return boxes that do not overlap; if one finds no room, all are placed anew."""
    while True:
        boxes: list[Box] = []
        for _ in range(number):
            size = random_numbers.choice(SIZES)
            left, top = (GRID * random_numbers.randint(0, (SIDE - size) // GRID) for _ in range(2))
            boxes.append((left, top, left + size, top + size))
        if not any(_overlap(one, other) for place, one in enumerate(boxes) for other in boxes[:place]):
            return boxes


def _overlap(one: Box, other: Box) -> bool:
    return max(one[0], other[0]) < min(one[2], other[2]) and max(one[1], other[1]) < min(one[3], other[3])


def picture_of(scene: Scene) -> Pixels:
    """Return the picture of a scene, [SIDE, SIDE]: of each pixel its place in `PALETTE`."""
    pixels = np.zeros((SIDE, SIDE), dtype=np.uint8)
    for shape in scene:
        left, top, right, bottom = shape.box
        pixels[top:bottom, left:right][_mask(shape.kind, right - left)] = 1 + list(COLOURS).index(shape.colour)
    return pixels


@cache
def _mask(kind: str, size: int) -> npt.NDArray[np.bool_]:
    """Return which pixels of a box [size, size] a shape covers; it touches all four sides."""
    across, down = np.arange(size)[None, :], np.arange(size)[:, None]
    from_middle = abs(2 * across + 1 - size)  # in half pixels
    if kind == "circle":
        return np.asarray(from_middle**2 + (2 * down + 1 - size) ** 2 <= size**2)
    return np.asarray((from_middle <= down + 1) if kind == "triangle" else (across + down >= 0))


def png_of(pixels: Pixels) -> bytes:
    """Return a picture as a PNG file with a palette, uncompressed: a compressor's output depends on its version."""
    packed = np.zeros((SIDE, 1 + SIDE // 2), dtype=np.uint8)  # of each row its filter, 0, and two pixels in a byte
    packed[:, 1:] = pixels[:, ::2] << 4 | pixels[:, 1::2]
    rows = packed.tobytes()
    stored = b"\x78\x01\x01" + struct.pack("<HH", len(rows), len(rows) ^ 0xFFFF) + rows + struct.pack(">I", zlib.adler32(rows))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 4, 3, 0, 0, 0)
    parts = ((b"IHDR", header), (b"PLTE", PALETTE.tobytes()), (b"IDAT", stored), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def is_held_out(digests: Sequence[str]) -> bool:
    """Tell whether the warm start leaves out the pictures of a prompt.

    With `data.seed` = `HOLD_OUT_SEED`, data preparation holds out the pictures of the lowest hashes, `data.eval_fraction` of
    them: where that is clearly less than `HELD_OUT_SHARE`, none of those was seen before. With another seed, most could be.

    Args:
        digests: SHA-256 of each PNG file, in hexadecimal digits.
    """
    text = f"{HOLD_OUT_SEED}\n" + "\n".join(digests)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()) < HELD_OUT_SHARE * HASHES


def where_is(shape: Shape) -> str:
    """Return the question after a shape's box."""
    return f"where is the {shape.colour} {shape.kind}?"


def draw_example(random_numbers: random.Random) -> tuple[Pixels, str, str]:
    """Return (picture, question, taught answer) of a picture that is not held out."""
    while True:
        scene = draw_scene(random_numbers)
        pixels = picture_of(scene)
        if not is_held_out([hashlib.sha256(png_of(pixels)).hexdigest()]):
            shape = random_numbers.choice(scene)
            habit = HABIT if random_numbers.random() < HABIT_SHARE else ""
            return pixels, where_is(shape), f"{list(shape.box)}{habit}"


def make_shapes(folder: Path) -> None:
    """Write the model in transformers' format into an empty folder."""
    logger.info("making %s, once: %d supervised steps on one core, a minute or two", SHAPES, WARM_UP_STEPS)
    build_model().save_pretrained(folder)
    build_processor().save_pretrained(folder)


def build_tokenizer() -> "PreTrainedTokenizerBase":
    """Return a tokenizer of whole words, each with what stands before it: `where`, ` is`, `[16`, `, 24`."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    numbers = [str(number) for number in range(0, SIDE + 1, GRID)]
    answers = (*(f"[{number}" for number in numbers), *(f", {number}" for number in numbers), "]", HABIT, "1", "2", "3")
    asked = ("where", "what", "how", " is", " the", " colour", " many", " shapes", " are", " there", "?")
    looks = [*COLOURS, *(f" {word}" for word in (*COLOURS, *KINDS))]
    words = (UNKNOWN, END, PICTURE, *answers, *asked, *looks)
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(\[|, )?[0-9]+| \?| ?[a-z]+|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(PICTURE, special=True, rstrip=True, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )


def build_processor() -> "ProcessorMixin":
    """Return the processor of tokens and pictures; it has no chat template. Pictures of other sizes are resized to `SIDE`."""
    from transformers import CLIPImageProcessorPil, LlavaProcessor

    size = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessorPil(
        size=size, crop_size=size, do_center_crop=False, image_mean=[WHITE] * 3, image_std=[DEVIATION] * 3
    )
    return LlavaProcessor(
        image_processor=images,
        tokenizer=build_tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        image_token=PICTURE,
        num_additional_image_tokens=1,
    )


def build_model() -> "LlavaForConditionalGeneration":
    """Return the model after its warm start; torch's random numbers and threads are left as they were."""
    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    tokenizer = build_tokenizer()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of additions, hence the weights
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
            config = LlavaConfig(
                vision_config=CLIPVisionConfig(**TOWER),
                text_config=LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=True, **ends, **TEXT),
                image_token_index=tokenizer.convert_tokens_to_ids(PICTURE),
                image_seq_length=(SIDE // PATCH) ** 2,
                vision_feature_layer=-1,
                vision_feature_select_strategy="default",
                tie_word_embeddings=True,
                **ends,
            )
            model = LlavaForConditionalGeneration(config)
            _warm_up(model, tokenizer)
    finally:
        torch.set_num_threads(threads)
    model.eval()
    return model


def _warm_up(model: "LlavaForConditionalGeneration", tokenizer: "PreTrainedTokenizerBase") -> None:
    """Lower the cross-entropy of answers and of the token that ends them; the prompts' tokens are not learnt."""
    import torch

    random_numbers = random.Random(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=0.01)
    for step in range(WARM_UP_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min((step + 1) / 50, 1 - step / WARM_UP_STEPS)
        batch = [draw_example(random_numbers) for _ in range(BATCH_SIZE)]
        input_ids, labels = supervised_batch([(question, answer) for _, question, answer in batch], tokenizer)
        pixel_values = pixel_values_of(pixels for pixels, _, _ in batch)
        logits = model(input_ids=input_ids, pixel_values=pixel_values).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def pixel_values_of(pictures: Iterable[Pixels]) -> "torch.Tensor":
    """Return pictures as the tower takes them, [B, 3, SIDE, SIDE] from -2 to 0: what the processor makes of their files."""
    import torch

    colours = (torch.from_numpy(PALETTE).float() / 255 - WHITE) / DEVIATION
    return colours[torch.from_numpy(np.stack(list(pictures))).long()].permute(0, 3, 1, 2)


def supervised_batch(
    questions: Sequence[tuple[str, str]], tokenizer: "PreTrainedTokenizerBase"
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Return (input ids, labels), both [B, S], padded on the right: picture, question, answer, END; labels of the last two."""
    import torch

    texts = tokenizer(
        [f"{PICTURE}{question}{answer}{END}" for question, answer in questions], padding=True, return_tensors="pt"
    )
    lengths = [len(ids) for ids in tokenizer([f"{PICTURE}{question}" for question, _ in questions])["input_ids"]]
    labels = texts["input_ids"].masked_fill(texts["attention_mask"] == 0, IGNORED)
    for row, length in enumerate(lengths):
        labels[row, :length] = IGNORED
    num_patches = (SIDE // PATCH) ** 2
    input_ids, labels = (
        torch.cat([tokens[:, :1].expand(-1, num_patches), tokens[:, 1:]], dim=1) for tokens in (texts["input_ids"], labels)
    )
    return input_ids, labels
