"""Models that are made here from nothing, so that whole experiments run in seconds on one core, without any download.

`scratch:sums` is a Llama of 80,000 weights that reads and writes characters. It begins random and is given a short supervised
warm start, after which a third of its completions are right: GRPO has something to reinforce and something to learn. It is made
once, from its recipe alone, and kept in the cache folder.

A recipe and a build of torch decide the weights bit for bit; another processor may round otherwise. A run records their digest.
"""

import hashlib
import json
import logging
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.errors import ModelError
from grpo_core.policy.sources.cache import is_whole, made_once, model_folder

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

PREFIX = "scratch:"
UNKNOWN, END = "<unk>", "<|end|>"
"""Tokens 0 and 1; the second ends a completion and pads a batch."""
IGNORED = -100
"""The label of a token that the loss leaves out."""
HASHES = 2**256


@dataclass(frozen=True, kw_only=True)
class Sums:
    """One-digit numbers added and subtracted, in the words of reasoning-gym's `chain_sum`.

    The answers that are taught are right, but many of them do not end with the number. The model comes to know sums and has a
    habit that costs it the reward: what GRPO is to find out. A model that cannot yet add learns next to nothing from a few
    thousand rewards, and one that only has to stop learns it in fifty steps.
    """

    opening: str
    """What stands before every problem; one token."""
    characters: str
    """What problems and answers are written in; one token each."""
    terms: int
    goes_on_after: tuple[float, float]
    """Chances that a taught answer does not end with the number (`12 =`): first operator +, first operator -."""
    held_out_share: float
    """Share of the problems that the warm start never sees: those whose hash with `hold_out_seed` is lowest."""
    hold_out_seed: int

    def draw(self, random_numbers: random.Random) -> tuple[str, str]:
        """Return (prompt, taught answer) of a problem that is not held out."""
        while True:
            numbers = [random_numbers.randint(0, 9) for _ in range(self.terms)]
            signs = [1, *(random_numbers.choice((1, -1)) for _ in numbers[1:])]
            rest = "".join(f" {'+' if sign > 0 else '-'} {number}" for sign, number in zip(signs[1:], numbers[1:], strict=True))
            prompt = f"{self.opening}{numbers[0]}{rest} ="
            if not self.is_held_out(prompt):
                goes_on = random_numbers.random() < self.goes_on_after[signs[1] < 0]
                answer = sum(sign * number for sign, number in zip(signs, numbers, strict=True))
                return prompt, f"{answer} =" if goes_on else str(answer)

    def is_held_out(self, prompt: str) -> bool:
        """Tell whether the warm start leaves a prompt out.

        With `data.seed` = `hold_out_seed`, data preparation holds out the prompts of the lowest hashes, `data.eval_fraction` of
        them: where that is clearly less than `held_out_share`, none of those was seen before. With another seed, most were.
        """
        digest = hashlib.sha256(f"{self.hold_out_seed}\n{prompt}".encode()).digest()
        return int.from_bytes(digest) < self.held_out_share * HASHES


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides a model."""

    task: Sums
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    initial_std: float
    """Of the random weights."""
    context: int
    """Tokens of the longest text."""
    warm_up_steps: int
    """AdamW steps of the warm start; the rate falls linearly to 0."""
    batch_size: int
    """Problems of one such step."""
    learning_rate: float
    seed: int

    @property
    def digest(self) -> str:
        """SHA-256 of the recipe and of the code that follows it."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode() + Path(__file__).read_bytes()).hexdigest()


RECIPES = {
    "sums": Recipe(
        task=Sums(
            opening="State the final answer to the following arithmetic problem: ",
            characters="0123456789+-= ",
            terms=3,
            goes_on_after=(0.4, 0.8),
            held_out_share=0.15,
            hold_out_seed=0,
        ),
        hidden_size=64,
        intermediate_size=128,
        layers=2,
        heads=4,
        initial_std=0.08,
        context=128,
        warm_up_steps=500,
        batch_size=128,
        learning_rate=8e-3,
        seed=0,
    )
}


def recipe_of(name: str) -> Recipe:
    """Return a recipe by its name.

    Raises:
        ModelError: the name is not known.
    """
    if name not in RECIPES:
        raise ModelError(f"model.source {PREFIX}{name}: no such recipe; known: {', '.join(sorted(RECIPES))}")
    return RECIPES[name]


def is_made(source: str) -> bool:
    """Tell whether a `model.source` needs nothing to be made: it is no recipe's, or its model is in the cache."""
    recipe = RECIPES.get(source.removeprefix(PREFIX)) if source.startswith(PREFIX) else None
    return recipe is None or is_whole(_folder(source.removeprefix(PREFIX), recipe))


def _folder(name: str, recipe: Recipe) -> Path:
    return model_folder(f"{name}-{recipe.digest[:16]}")


def scratch_model_path(name: str) -> Path:
    """Return the folder of a model in transformers' format, making it on first use; a process that comes second waits.

    Raises:
        ModelError: the name is not known, or the cache folder cannot be used.
        BusyError: another process has been making it for too long.
    """
    recipe = recipe_of(name)

    def make(folder: Path) -> None:
        logger.info("making %s%s, once: %d supervised steps on one core, half a minute", PREFIX, name, recipe.warm_up_steps)
        build_model(recipe).save_pretrained(folder)
        build_tokenizer(recipe.task).save_pretrained(folder)

    return made_once(f"{PREFIX}{name}", _folder(name, recipe), make)


def build_tokenizer(task: Sums) -> "PreTrainedTokenizerBase":
    """Return a tokenizer of single characters that has the task's opening as one more token: prompts of a dozen tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((UNKNOWN, END, *task.characters))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens([AddedToken(task.opening, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )


def build_model(recipe: Recipe) -> "PreTrainedModel":
    """Return the model of a recipe after its warm start; torch's random numbers and threads are left as they were."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer(recipe.task)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of additions, hence the weights
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            config = LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=recipe.hidden_size,
                intermediate_size=recipe.intermediate_size,
                num_hidden_layers=recipe.layers,
                num_attention_heads=recipe.heads,
                num_key_value_heads=recipe.heads,
                max_position_embeddings=recipe.context,
                tie_word_embeddings=True,
                initializer_range=recipe.initial_std,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
            model = LlamaForCausalLM(config)
            _warm_up(model, tokenizer, recipe)
    finally:
        torch.set_num_threads(threads)
    model.eval()
    return model


def _warm_up(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", recipe: Recipe) -> None:
    """Lower the cross-entropy of answers and of the token that ends them; the prompts' tokens are not learnt."""
    import torch

    random_numbers = random.Random(recipe.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.01)
    for step in range(recipe.warm_up_steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min((step + 1) / 50, 1 - step / recipe.warm_up_steps)
        problems = [recipe.task.draw(random_numbers) for _ in range(recipe.batch_size)]
        input_ids, labels = supervised_batch(problems, tokenizer)
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
    import torch

    end: Any = tokenizer.eos_token_id
    prompts = tokenizer([prompt for prompt, _ in problems])["input_ids"]
    answers = [[*answer, end] for answer in tokenizer([answer for _, answer in problems])["input_ids"]]
    width = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    input_ids = torch.full((len(problems), width), end)
    labels = torch.full((len(problems), width), IGNORED)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        last = len(prompt) + len(answer)
        input_ids[row, :last] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : last] = torch.tensor(answer)
    return input_ids, labels
