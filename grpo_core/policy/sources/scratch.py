"""A model that is made here from nothing, so that whole experiments run in seconds on one core, without any download.

`scratch:sums` is a Llama of 80,000 weights that reads and writes characters. It begins random and is given a short supervised
warm start, after which a third of its completions are right: GRPO has something to reinforce and something to learn. It is made
once, from what stands here alone, and kept in the cache folder.

Its task: one-digit numbers added and subtracted, in the words of reasoning-gym's `chain_sum`. The answers that are taught are
right, but many of them do not end with the number. The model comes to know sums and has a habit that costs it the reward: what
GRPO is to find out. A model that cannot yet add learns next to nothing from a few thousand rewards, and one that only has to
stop learns it in fifty steps.

This file and a build of torch decide the weights bit for bit; another processor may round otherwise, so a run records their
digest.
"""

import hashlib
import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

SUMS = "scratch:sums"
UNKNOWN, END = "<unk>", "<|end|>"
"""Tokens 0 and 1; the second ends a completion and pads a batch."""
IGNORED = -100
"""The label of a token that the loss leaves out."""
OPENING = "State the final answer to the following arithmetic problem: "
"""What stands before every problem; one token."""
CHARACTERS = "0123456789+-= "
"""What problems and answers are written in; one token each."""
TERMS = 3
GOES_ON_AFTER = {1: 0.4, -1: 0.8}
"""Chances that a taught answer does not end with the number (`12 =`), by the sign of the second number."""
HELD_OUT_SHARE, HOLD_OUT_SEED = 0.15, 0
"""Share of the problems that the warm start never sees: those whose hash with the seed is lowest."""
HASHES = 2**256
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.08,
}
WARM_UP_STEPS, BATCH_SIZE, LEARNING_RATE, SEED = 500, 128, 8e-3, 0
"""Of the warm start by AdamW, whose rate falls linearly to 0."""


def draw_problem(random_numbers: random.Random) -> tuple[str, str]:
    """Return (prompt, taught answer) of a problem that is not held out."""
    while True:
        numbers = [random_numbers.randint(0, 9) for _ in range(TERMS)]
        signs = [1, *(random_numbers.choice((1, -1)) for _ in numbers[1:])]
        rest = "".join(f" {'+' if sign > 0 else '-'} {number}" for sign, number in zip(signs[1:], numbers[1:], strict=True))
        prompt = f"{OPENING}{numbers[0]}{rest} ="
        if not is_held_out(prompt):
            goes_on = random_numbers.random() < GOES_ON_AFTER[signs[1]]
            answer = sum(sign * number for sign, number in zip(signs, numbers, strict=True))
            return prompt, f"{answer} =" if goes_on else str(answer)


def is_held_out(prompt: str) -> bool:
    """Tell whether the warm start leaves a prompt out.

    With `data.seed` = `HOLD_OUT_SEED`, data preparation holds out the prompts of the lowest hashes, `data.eval_fraction` of
    them: where that is clearly less than `HELD_OUT_SHARE`, none of those was seen before. With another seed, most were.
    """
    return int.from_bytes(hashlib.sha256(f"{HOLD_OUT_SEED}\n{prompt}".encode()).digest()) < HELD_OUT_SHARE * HASHES


def make_sums(folder: Path) -> None:
    """Write the model in transformers' format into an empty folder."""
    logger.info("making %s, once: %d supervised steps on one core, half a minute", SUMS, WARM_UP_STEPS)
    build_model().save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)


def build_tokenizer() -> "PreTrainedTokenizerBase":
    """Return a tokenizer of single characters that has the task's opening as one more token: prompts of a dozen tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((UNKNOWN, END, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens([AddedToken(OPENING, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )


def build_model() -> "PreTrainedModel":
    """Return the model after its warm start; torch's random numbers and threads are left as they were."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of additions, hence the weights
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            config = LlamaConfig(
                vocab_size=len(tokenizer),
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                **SIZES,
            )
            model = LlamaForCausalLM(config)
            _warm_up(model, tokenizer)
    finally:
        torch.set_num_threads(threads)
    model.eval()
    return model


def _warm_up(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> None:
    """Lower the cross-entropy of answers and of the token that ends them; the prompts' tokens are not learnt."""
    import torch

    random_numbers = random.Random(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    for step in range(WARM_UP_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min((step + 1) / 50, 1 - step / WARM_UP_STEPS)
        input_ids, labels = supervised_batch([draw_problem(random_numbers) for _ in range(BATCH_SIZE)], tokenizer)
        logits = model(input_ids=input_ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def supervised_batch(
    problems: list[tuple[str, str]], tokenizer: "PreTrainedTokenizerBase"
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Return (input ids, labels), both [B, S] and padded on the right: prompt, answer, END; labels of the last two alone."""
    texts = tokenizer([f"{prompt}{answer}{END}" for prompt, answer in problems], padding=True, return_tensors="pt")
    input_ids: torch.Tensor = texts["input_ids"]
    labels = input_ids.masked_fill(texts["attention_mask"] == 0, IGNORED)
    for row, prompt in enumerate(tokenizer([prompt for prompt, _ in problems])["input_ids"]):
        labels[row, : len(prompt)] = IGNORED
    return input_ids, labels
