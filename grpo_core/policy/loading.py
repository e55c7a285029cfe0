"""Load the model and the tokenizer of a folder, and tell its weights apart from others by digest."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.errors import ModelError, raised_as
from grpo_core.machine.disk import sha256_of
from grpo_core.machine.jsonfile import read_json
from grpo_core.policy.lora.facts import ADAPTER_CONFIG
from grpo_core.policy.sources.find import WEIGHT_FILES

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

UNLOADABLE = (OSError, ValueError, KeyError)
COMPUTES_NOTHING = (
    *("auto_mapping", "base_model_name_or_path", "peft_version", "revision", "task_type"),
    *("inference_mode", "init_lora_weights", "lora_dropout"),
)
"""Settings of an adapter that name something, or matter while it is made: with others it computes the same."""


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a model folder.

    Raises:
        ModelError: there is none, or it has no end-of-sequence token.
    """
    from transformers import AutoTokenizer

    with raised_as(ModelError, f"model.source: no tokenizer can be loaded from {folder}: {{cause}}", *UNLOADABLE):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    if tokenizer.eos_token_id is None:
        raise ModelError(f"model.source: the tokenizer of {folder} has no end-of-sequence token, so no completion can end")
    return tokenizer


def load_model(folder: Path, device: "torch.device | str" = "cpu", trust_remote_code: bool = False) -> "PreTrainedModel":
    """Load a causal language model with fp32 weights, dropout off.

    Raises:
        ModelError: it cannot be loaded, or its logits are not a plain projection of its hidden states.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with raised_as(ModelError, f"model.source: no causal language model can be loaded from {folder}: {{cause}}", *UNLOADABLE):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=trust_remote_code)
    model.eval()
    _check_plain_head(model, folder)
    return model.to(device)


def _check_plain_head(model: "PreTrainedModel", folder: Path) -> None:
    """Some architectures scale or cap their logits after the head; log-probabilities computed from it would be wrong."""
    import torch

    from grpo_core.policy.forward import backbone, vocabulary_head

    ids = torch.arange(1, 9).unsqueeze(0) % model.config.get_text_config().vocab_size
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        computed = vocabulary_head(model)(backbone(model)(input_ids=ids).last_hidden_state)
    if expected.isnan().any() or expected.isposinf().any():  # a vocabulary may be masked by -inf
        broken = (name for name, weights in model.named_parameters() if not torch.isfinite(weights).all())
        where = f"holds NaN or an infinity in {next(broken, 'none of its weights, but in its logits')}"
        raise ModelError(f"model.source: {type(model).__name__} in {folder} {where}; copy or download it again")
    if not torch.allclose(expected, computed, atol=1e-4, rtol=1e-4):
        difference = (expected - computed).abs().max().item()
        raise ModelError(
            f"model.source: {type(model).__name__} in {folder} changes its logits after the vocabulary head (by up to "
            f"{difference:.3g}); such architectures are not supported yet"
        )


def eos_token_ids(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> tuple[int, ...]:
    """Return every id that ends a completion: the tokenizer's and those of the model's generation config."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids: Iterable[int] = configured if isinstance(configured, list) else [configured] if configured is not None else []
    return tuple(dict.fromkeys([int(tokenizer.eos_token_id), *map(int, ids)]))


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of what a model folder computes with: its weight files, in name order, and an adapter's settings.

    The same A and B are another adapter with another alpha, scale or list of layers.

    Raises:
        ModelError: the settings of an adapter cannot be read.
    """
    return hashlib.sha256(bytes.fromhex("".join(map(_digest_of, _weight_files(folder))))).hexdigest()


def weights_identity(folder: Path) -> str:
    """Return a digest of the paths, sizes and times of the files of `weights_digest`: while it stays the same, so does that."""
    facts = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in _weight_files(folder)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _digest_of(file: Path) -> str:
    """Return the SHA-256 of a file; of an adapter's settings, of those that are on and change what it computes."""
    if file.name != ADAPTER_CONFIG:
        return sha256_of(file)
    with raised_as(ModelError, f"{file}: cannot be read ({{cause}})", OSError, ValueError, AttributeError):
        settings = {key: value for key, value in read_json(file).items() if value and key not in COMPUTES_NOTHING}
    plain = {key: sorted(map(str, value)) if isinstance(value, list) else value for key, value in settings.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _weight_files(folder: Path) -> list[Path]:
    return sorted(file for pattern in (*WEIGHT_FILES, ADAPTER_CONFIG) for file in folder.glob(pattern) if file.is_file())
