"""Drafters as callers give them: folders, repositories, and language models that are loaded already.

    to_drafters("runs/eagle")                       # one by name
    to_drafters(draft_model)                        # one that is loaded; its tokenizer is that of its folder
    to_drafters([(draft_model, tokenizer), "runs/eagle"])
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from huggingface_hub import try_to_load_from_cache

from polydraft.core.checks.arguments import argument_error, to_items, to_name
from polydraft.core.errors import UnsupportedMethod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from polydraft.modalities.model_card import ModelCard

# a name, a language model, or one with its tokenizer
Drafter: TypeAlias = "str | Path | PreTrainedModel | tuple[PreTrainedModel, Any] | LoadedDrafter"
Drafters: TypeAlias = "Drafter | Sequence[Drafter]"  # one drafter, or several of different kinds
DRAFTER_FORMS = "a folder's path, a repository, a language model of transformers, (model, tokenizer), or several"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
WRITING = ("vlm", "transcription")  # modalities whose tokens are those of a text


@dataclass(frozen=True)
class LoadedDrafter:
    """Language model that the caller has loaded, to draft for another one."""

    model: PreTrainedModel
    tokenizer: Any = None  # None is the one of the folder that the model was loaded from

    def __str__(self) -> str:
        return origin_of(self.model).name

    def load_tokenizer(self) -> Any:
        """Return the model's tokenizer, None where it is not known."""
        return self.tokenizer if self.tokenizer is not None else tokenizer_of(self.model)


def to_drafters(drafter: Drafters | None) -> tuple[str | LoadedDrafter, ...]:
    """Return the drafters that a caller has given, one or several, as a tuple.

    Raises:
        InvalidArgument: One of them is no name, no path and no language model.
    """
    if drafter is None:
        return ()
    if isinstance(drafter, str | bytes | PathLike) or is_loaded(drafter):
        return (to_drafter(drafter),)
    return tuple(to_drafter(each) for each in to_items("drafter", drafter, DRAFTER_FORMS))


def to_drafter(drafter: Any) -> str | LoadedDrafter:
    """Return one drafter.

    Raises:
        InvalidArgument: It is no name, no path and no language model.
    """
    if isinstance(drafter, LoadedDrafter):
        return drafter
    if isinstance(drafter, str | bytes | PathLike):
        return to_name("drafter", drafter)
    if not is_loaded(drafter):
        raise argument_error("drafter", drafter, DRAFTER_FORMS)
    model, tokenizer = drafter if isinstance(drafter, tuple) else (drafter, None)
    return LoadedDrafter(unwrap(model), getattr(tokenizer, "tokenizer", tokenizer))  # a processor has a tokenizer


def is_loaded(drafter: Any) -> bool:
    """Return whether a drafter is a model, or a model with its tokenizer."""
    if isinstance(drafter, LoadedDrafter) or is_model(drafter):
        return True
    if not isinstance(drafter, tuple) or len(drafter) != 2 or not is_model(drafter[0]):
        return False
    return hasattr(getattr(drafter[1], "tokenizer", drafter[1]), "get_vocab")


def is_model(value: Any) -> bool:
    """Return whether a value is a model of transformers, or one that peft or torch.compile has wrapped."""
    from transformers import PreTrainedModel

    return isinstance(unwrap(value), PreTrainedModel)


def unwrap(model: Any) -> Any:
    """Return the model of transformers that torch.compile or peft has wrapped, with adapters; others as they are."""
    model = getattr(model, "_orig_mod", model)
    is_wrapped = type(model).__module__.partition(".")[0] == "peft" and hasattr(model, "get_base_model")
    return model.get_base_model() if is_wrapped else model


def origin_of(model: PreTrainedModel) -> Path:
    """Return the folder or repository that a model was loaded from, its class's name where that is not known."""
    return Path(getattr(model.config, "name_or_path", "") or type(model).__name__)


def tokenizer_of(model: PreTrainedModel) -> Any:
    """Return the tokenizer in the folder that a model was loaded from, None where there is none on this machine."""
    name = getattr(model.config, "name_or_path", "")
    if not name:
        return None
    folder = Path(name)
    if not folder.is_dir() and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        cached = try_to_load_from_cache(name, "tokenizer_config.json")
        folder = Path(cached).parent if isinstance(cached, str) else folder
    return tokenizer_in(folder)


def tokenizer_in(folder: Path) -> Any:
    """Return the tokenizer in a folder, None where it has none.

    Raises:
        WeightsError: The tokenizer cannot be read.
    """
    from polydraft.modalities.vocab_mapping import load_tokenizer
    from polydraft.modalities.weights import read_weights

    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    return read_weights("tokenizer", folder, lambda: load_tokenizer(folder))


def check_loaded_drafter(card: ModelCard, drafter: LoadedDrafter) -> None:
    """Check that a loaded model can draft for a model's kind of token.

    Raises:
        UnsupportedMethod: The target writes no text, or the drafter is no decoder alone.
    """
    if card.modality not in WRITING:
        raise UnsupportedMethod(
            f"{card.name} generates {card.modality} and drafter={drafter} writes text; give the folder of a drafter "
            "that was made for it."
        )
    if drafter.model.config.is_encoder_decoder:
        raise UnsupportedMethod(
            f"drafter={drafter} has an encoder, whose inputs a loaded model does not describe; give the folder that it "
            "was loaded from."
        )
    if not drafter.model.can_generate():
        raise UnsupportedMethod(
            f"drafter={drafter} is a {type(drafter.model).__name__}, which has no LM head; load it as a causal "
            "language model."
        )
