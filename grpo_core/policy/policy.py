"""The policy: a causal language model that completes prompts and gives the probability of every token of a completion."""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Optional, TypeVar

import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_core.algorithm.divergence import TokenDivergences
from grpo_core.algorithm.logprobs import token_divergences, token_full_kl, token_logps, token_logps_and_entropy
from grpo_core.errors import name_of
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings
from grpo_core.generation.torch_sampler import sample_completions
from grpo_core.parallel.sharded import gathered, is_spread, rows_of, run, settle
from grpo_core.parallel.world import SOLO, World, local
from grpo_core.policy.device import Dtype, attention_dtype, compute_in, on_device, to_host
from grpo_core.policy.fast.decoding import LeanDecoder, LeanDecoding, PlainDecoder
from grpo_core.policy.fast.grouped import GroupedTokens, grouped_hidden
from grpo_core.policy.fast.path import Decoding, SamplingPath
from grpo_core.policy.fast.products import prepared_weights
from grpo_core.policy.forward import cut_rows, microbatches, recomputing, rows_hidden, scatter, vocabulary_head
from grpo_core.policy.model_images import ModelImages
from grpo_core.policy.outline import DIVERGENCE_COPIES, FULL_KL_COPIES, tokens_at_once
from grpo_core.policy.spread import copy_model
from grpo_core.policy.vision import tower_parameters
from grpo_core.policy.weights import (
    WEIGHTS_FILE,
    Weights,
    as_on_hub,
    save_weights,
    squared_difference,
    weights_of,
)
from grpo_core.types import Prompt

Found = TypeVar("Found")


@dataclass(kw_only=True)
class BatchLimits:
    """Bounds of a pass, shared by a policy and its copies. They may change between two steps, results in their last digits.

    `rollout_rows` are the completions that are sampled together, which bounds the cache; `microbatch_tokens` the tokens of one
    forward pass, padding included, which bounds the activations.
    """

    rollout_rows: int = 256
    microbatch_tokens: int = 16384

    def set(self, *, rollout_rows: int, microbatch_tokens: int) -> None:
        """Bound every pass from now on."""
        self.rollout_rows, self.microbatch_tokens = rollout_rows, microbatch_tokens


@dataclass(frozen=True, kw_only=True)
class TokenFigures:
    """What a forward pass gives for the completion tokens of some rows; 0 outside the completion mask.

    `logps` are of the temperature-scaled policy; `entropy`, in nats, has no gradient; `full_kl` is the exact
    KL(policy || reference), in nats, and None where no reference was given.
    """

    logps: Float[Tensor, "b T"]
    entropy: Float[Tensor, "b T"]
    full_kl: Float[Tensor, "b T"] | None = None

    def detach(self) -> "TokenFigures":
        """Return the same without gradient, so that the graph of the pass can be freed."""
        return replace(self, logps=self.logps.detach(), full_kl=None if self.full_kl is None else self.full_kl.detach())

    @classmethod
    def join(cls, parts: Sequence["TokenFigures"]) -> "TokenFigures":
        """Return the rows of several passes as one."""
        exact = [part.full_kl for part in parts if part.full_kl is not None]
        return cls(
            logps=torch.cat([part.logps for part in parts]),
            entropy=torch.cat([part.entropy for part in parts]),
            full_kl=torch.cat(exact) if exact else None,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Policy:
    """A model and everything that it takes to use it. It is a `Sampler`: the embedded one."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: tuple[int, ...]
    """Each ends a completion; the first pads."""
    dtype: Dtype = "float32"
    """Matrix products are computed in it; weights and the vocabulary head stay fp32."""
    temperature: float = 1.0
    """Log-probabilities are of the policy whose logits are divided by it: the one that makes the rollouts."""
    limits: BatchLimits = field(default_factory=BatchLimits)
    path: SamplingPath = field(default_factory=SamplingPath)
    recomputed: bool = False
    """Whether a layer keeps its input alone for the backward pass, which computes it again (`forward.recomputing`)."""
    used_on: torch.device | None = None
    """Where its passes run, if its weights wait in host memory between them (`device.on_device`)."""
    world: World = SOLO
    """The processes that share out what it samples and measures."""
    images: ModelImages | None = None
    """What reads the images of its prompts; None = the model reads text alone."""

    @property
    def device(self) -> torch.device:
        """Where every tensor of its completions is."""
        return torch.device(self.model.device) if self.used_on is None else self.used_on

    def ready(self) -> contextlib.AbstractContextManager[None]:
        """Have the weights where its passes run while inside; they may not change there."""
        return on_device(self.model, self.device)

    def parameters(self) -> Iterator[Parameter]:
        """Yield what is trained."""
        frozen = {id(weights) for weights in self._shared()}
        yield from (parameter for parameter in self.model.parameters() if id(parameter) not in frozen)

    def _shared(self) -> list[Parameter]:
        """Return the weights that its copies have with it: those of a frozen tower."""
        return tower_parameters(self.model) if self.images is not None and self.images.is_frozen else []

    def end_passes(self) -> None:
        """Add up the gradients that the processes have of the pieces that were theirs, after the last `forward` of a step."""
        settle(self.model)
        self.world.add_gradients(self.parameters())

    def frozen_copy(self) -> "Policy":
        """Return a copy whose weights have no gradient."""
        shared: dict[int, object] = {id(weights): weights for weights in self._shared()}
        model = copy_model(self.model, self.world, self.dtype) if is_spread(self.model) else copy.deepcopy(self.model, shared)
        copied = replace(self, model=model.requires_grad_(False).eval())
        return copied if self.used_on is None else copied.offloaded()  # a copy is in ordinary memory

    def offloaded(self) -> "Policy":
        """Return the same policy; its weights wait in host memory from now on; so do those of its copies."""
        used_on = self.device
        to_host(self.model)
        return replace(self, used_on=used_on)

    def weights(self) -> Weights:
        """Return what one policy differs from another in, in its memory: weights and buffers, each once, by its name."""
        return weights_of(self.model)

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Take the values of `weights()`, in which `misfit` finds no fault."""
        for name, tensor in self.weights().items():
            local(tensor).copy_(rows_of(tensor, weights[name]))

    def misfit(self, weights: Weights) -> str | None:
        """Return why `load` cannot take these weights; None where it can."""
        own = self.weights()
        for name, tensor in own.items():
            if (found := weights.get(name)) is None or found.shape != tensor.shape:
                return f"{name} has the shape {found if found is None else [*found.shape]}, here it is {[*tensor.shape]}"
        return next((f"{name_of(name)} is no weight of this model" for name in weights if name not in own), None)

    @torch.no_grad()
    def follow(self, policy: "Policy", share: float) -> float | None:
        """Become share x policy + (1 - share) x itself.

        Returns:
            How far the result is from that: the Frobenius norm over all weights; None where by no more than rounding.
        """
        for own, parameter in zip(self.model.parameters(), policy.model.parameters(), strict=True):
            if share == 1:
                local(own).copy_(local(parameter))
            else:
                local(own).lerp_(local(parameter).to(own.device), share)
        return None

    @torch.no_grad()
    def distance(self, other: "Policy") -> float:
        """Return the Frobenius norm of the difference over all weights."""
        pairs = zip(self.model.parameters(), other.model.parameters(), strict=True)
        squares = sum(squared_difference(local(one), local(two)) for one, two in pairs)
        return math.sqrt(sum(self.world.gather(squares)[: self.world.shards]))  # the first replica has each row once

    def merged_weights(self) -> Iterator[tuple[str, Float[Tensor, "..."]]]:
        """Yield the weights of a model without adapters that computes the same, each once, by its name in transformers."""
        yield from ((name, parameter.detach()) for name, parameter in self.model.named_parameters())

    def save(self, folder: Path, weights: Weights) -> None:
        """Write a folder that transformers loads, with what `weights` returned."""
        self.model.save_pretrained(folder, state_dict={})  # all but the weights
        self.save_tokenizer(folder)
        save_weights(as_on_hub(self.model, weights), folder / WEIGHTS_FILE)

    def save_tokenizer(self, folder: Path) -> None:
        """Write tokenizer and processor into a folder: the files of the latter as they are, its part for video with them."""
        self.tokenizer.save_pretrained(folder)
        for name, content in ({} if self.images is None else self.images.files).items():
            (folder / name).write_bytes(content)

    def stored(self, folder: Path) -> Weights:
        """Return the weights in a folder that `save` has written, as `load` takes them."""
        weights: Weights = load_file(folder / WEIGHTS_FILE)
        if weights.keys() >= dict(self.model.named_parameters()).keys():
            return weights
        # Experts whose names are those of the hub.
        return weights_of(type(self.model).from_pretrained(folder, dtype=torch.float32))

    def sample(self, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> SampledCompletions:
        """See `Sampler.sample`. Padding in `completion_ids` is the first end-of-sequence token id."""
        with self.ready(), gathered(self.model), self._decoding() as decoding:
            return sample_completions(self, decoding, prompts, settings, key)

    @contextlib.contextmanager
    def _decoding(self) -> Iterator[Decoding]:
        """Prepare the weights as they are now for many tokens."""
        dtype, packed = attention_dtype(self.model, self.dtype), self.path.packed
        if self.path.lean:
            yield partial(LeanDecoder, LeanDecoding.of(self.model, dtype, packed=packed))
        else:
            with prepared_weights(self.model, self.dtype, packed=packed):
                yield partial(PlainDecoder, self.model, dtype)

    def decode(self, completions: SampledCompletions) -> list[str]:
        """Return the completions as text, without special tokens."""
        ends = zip(completions.completion_ids.tolist(), completions.lengths().tolist(), strict=True)
        rows = [ids[:length] for ids, length in ends]
        return [str(text) for text in self.tokenizer.batch_decode(rows, skip_special_tokens=True)]

    def forward(
        self, completions: SampledCompletions, rows: Sequence[int], reference: Optional["Policy"] = None
    ) -> TokenFigures:
        """Run some rows in one pass, with gradient where gradients are enabled; the exact KL is to `reference`.

        Both are `ready`, the reference until the backward pass.
        """
        logps, entropy, full_kl = self._through(reference, lambda: self._figures(completions, rows, reference))
        return TokenFigures(logps=logps, entropy=entropy, full_kl=full_kl)

    def _through(self, other: Optional["Policy"], compute: Callable[[], Found]) -> Found:
        """Return what a function computes with both models, wherever their weights are."""
        return run(self.model, compute if other is None else partial(run, other.model, compute))

    def _figures(
        self, completions: SampledCompletions, rows: Sequence[int], reference: Optional["Policy"]
    ) -> tuple[Float[Tensor, "b T"], Float[Tensor, "b T"], Float[Tensor, "b T"] | None]:
        ids, mask = cut_rows(completions, rows)
        head, width = vocabulary_head(self.model), completions.completion_ids.shape[1]
        with compute_in(self.dtype, ids.device):
            hidden = self._hidden(completions, rows)
            at_once = self._at_once(len(hidden), 1 if reference is None else FULL_KL_COPIES)
            logps, entropy = token_logps_and_entropy(hidden, head, ids[mask], self.temperature, at_once)
            exact = None
            if reference is not None:
                with torch.no_grad():
                    ref_hidden = reference._hidden(completions, rows)
                exact = scatter(self._exact(hidden, reference, ref_hidden), mask, width)
        return scatter(logps, mask, width), scatter(entropy, mask, width), exact

    def _at_once(self, tokens: int, copies: int) -> int:
        """Return how many tokens are projected to the vocabulary at once, where each holds so many copies of its logits."""
        return tokens_at_once(tokens, copies * self.model.config.get_text_config().vocab_size)

    def _exact(
        self, hidden: Float[Tensor, "N H"], reference: "Policy", ref_hidden: Float[Tensor, "N H_ref"]
    ) -> Float[Tensor, " N"]:
        """Return the exact KL to the reference, given the last hidden states of both."""
        head, ref_head = vocabulary_head(self.model), vocabulary_head(reference.model)
        at_once = self._at_once(len(hidden), FULL_KL_COPIES)
        return token_full_kl(hidden, head, ref_hidden, ref_head, temperature=self.temperature, chunk_tokens=at_once)

    def _hidden(self, completions: SampledCompletions, rows: Sequence[int]) -> Float[Tensor, "N H"]:
        recomputed = self.recomputed and torch.is_grad_enabled()
        with recomputing(self.model) if recomputed else contextlib.nullcontext():
            if self.path.padded:
                return rows_hidden(self.model, completions, rows, self.images, replayed=recomputed)
            return grouped_hidden(self.model, GroupedTokens.of(completions, rows), self.images)

    def measure(self, completions: SampledCompletions, reference: Optional["Policy"] = None) -> TokenFigures:
        """Return what `forward` gives for all rows, in passes of `limits.microbatch_tokens`, without gradient."""
        parts = self._in_microbatches(completions, reference, lambda rows: self._figures(completions, rows, reference))
        return TokenFigures.join([TokenFigures(logps=logps, entropy=entropy, full_kl=kl) for logps, entropy, kl in parts])

    def divergences(self, completions: SampledCompletions, other: "Policy") -> TokenDivergences:
        """Return [B, T] how far it is from another policy at every completion token, given the tokens before; 0 elsewhere."""
        head, other_head = vocabulary_head(self.model), vocabulary_head(other.model)

        def of_rows(rows: Sequence[int]) -> TokenDivergences:
            ids, mask = cut_rows(completions, rows)
            with compute_in(self.dtype, ids.device):
                hidden, other_hidden = self._hidden(completions, rows), other._hidden(completions, rows)
                at_once = self._at_once(len(hidden), DIVERGENCE_COPIES)
                found = token_divergences(
                    hidden, head, other_hidden, other_head, temperature=self.temperature, chunk_tokens=at_once
                )
            return TokenDivergences(*(scatter(values, mask, completions.completion_ids.shape[1]) for values in found))

        return TokenDivergences(*map(torch.cat, zip(*self._in_microbatches(completions, other, of_rows), strict=True)))

    @torch.no_grad()
    def _in_microbatches(
        self, completions: SampledCompletions, other: Optional["Policy"], of_rows: Callable[[Sequence[int]], Found]
    ) -> list[Found]:
        """Return what a function of some rows gives for each micro-batch, while both policies are ready."""
        pieces = microbatches(completions, range(completions.num_rows), self.limits.microbatch_tokens)
        with self.ready(), contextlib.nullcontext() if other is None else other.ready():
            found = self.world.deal(pieces, lambda rows, _: self._through(other, partial(of_rows, rows)))
        for policy in (self, *([] if other is None else [other])):
            settle(policy.model)
        return found

    def logps(self, completions: SampledCompletions) -> Float[Tensor, "B T"]:
        """Return the log-probability of every completion token, without gradient, as `measure` does."""
        return self.logps_and_kl(completions, None)[0]

    def logps_and_kl(
        self, completions: SampledCompletions, policy: Optional["Policy"]
    ) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"] | None]:
        """Return `logps`, and the exact KL(policy || this one) if a policy is given, in one pass of each, without gradient.

        The log-probabilities are the same bits with and without it.
        """
        head, width = vocabulary_head(self.model), completions.completion_ids.shape[1]

        def of_rows(rows: Sequence[int]) -> tuple[Float[Tensor, "b T"], Float[Tensor, "b T"] | None]:
            ids, mask = cut_rows(completions, rows)
            with compute_in(self.dtype, ids.device):
                hidden = self._hidden(completions, rows)
                logps = token_logps(hidden, head, ids[mask], self.temperature, self._at_once(len(hidden), 1))
                exact = None if policy is None else policy._exact(policy._hidden(completions, rows), self, hidden)
            return scatter(logps, mask, width), None if exact is None else scatter(exact, mask, width)

        logps, exact = zip(*self._in_microbatches(completions, policy, of_rows), strict=True)
        return torch.cat(logps), None if policy is None else torch.cat(exact)
