"""Sampling defaults, constraints and length limits of a checkpoint's generation_config.json.

    sampling_defaults(read_json(folder / "generation_config.json"))
    build_constraints(model.generation_config, vocab_size, eos_token_ids, device)
    unsupported_fields(model.generation_config)     # logged once, never dropped silently
    length_limits(model.generation_config)          # used where the caller gives no length
    resolve_eos_token_ids(model.generation_config.eos_token_id, tokenizer, vocab_size, name)

Where transformers has a default for a field, that default holds here too, so that the same file means the same
sampling as in `generate`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import GenericAlias
from typing import Any

import torch

from polydraft.core.errors import WeightsError
from polydraft.core.folders.fields import NumberRange, check_fields
from polydraft.core.folders.json_files import read_json
from polydraft.core.sampling.constraints import Constraints

WARPERS = ("temperature", "top_k", "top_p", "min_p")  # without effect on greedy decoding
DEFAULT_TOP_K = 50  # of `generate`, where the file samples without naming a top_k
# Fields that are not supported, each with the values that change nothing.
UNSUPPORTED_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "sequence_bias": (None,), "exponential_decay_length_penalty": (None,), "forced_bos_token_id": (None,),
    "min_length": (None, 0), "min_new_tokens": (None, 0), "num_beams": (None, 1), "num_beam_groups": (None, 1),
    "diversity_penalty": (None, 0.0), "penalty_alpha": (None, 0.0), "dola_layers": (None,), "constraints": (None,),
    "force_words_ids": (None,), "stop_strings": (None,), "watermarking_config": (None,), "token_healing": (None, False),
    "encoder_repetition_penalty": (None, 1.0), "encoder_no_repeat_ngram_size": (None, 0), "guidance_scale": (None, 1),
    "max_new_tokens": (None,), "max_length": (None,), "max_time": (None,),
}  # fmt: skip
LENGTH_FIELDS = frozenset({"max_new_tokens", "max_length"})  # supported where nothing else limits a sequence's length
UNSUPPORTED_SAMPLING_DEFAULTS: dict[str, tuple[Any, ...]] = {  # further ones, if the file samples
    "typical_p": (None, 1.0), "epsilon_cutoff": (None, 0.0), "eta_cutoff": (None, 0.0), "top_h": (None,),
}  # fmt: skip
NONE = type(None)
ID, NUMBER = NumberRange(int, -math.inf), NumberRange(float, -math.inf)  # ids outside the vocabulary have no effect
ID_LIST = GenericAlias(list, (ID,))
IDS = (ID, ID_LIST, NONE)
FIELD_TYPES: dict[str, Any] = {  # of supported fields
    "do_sample": (bool, NONE), "temperature": (NUMBER, NONE), "top_k": (ID, NONE), "top_p": (NUMBER, NONE),
    "min_p": (NUMBER, NONE), "repetition_penalty": (NumberRange(float, 0), NONE), "eos_token_id": IDS,
    "pad_token_id": (ID, NONE), "bos_token_id": (ID, NONE), "forced_eos_token_id": IDS,
    "suppress_tokens": (ID_LIST, NONE), "begin_suppress_tokens": (ID_LIST, NONE),
    "bad_words_ids": (GenericAlias(list, (ID_LIST,)), NONE), "no_repeat_ngram_size": (NumberRange(int, 0), NONE),
    "alignment_heads": (GenericAlias(list, (ID_LIST,)), NONE),
    **dict.fromkeys(LENGTH_FIELDS, (NumberRange(int, 1), NONE)),
}  # fmt: skip
SAMPLING_RANGES: dict[str, Any] = {  # checked only if the file samples
    "temperature": (NumberRange(float, 0), NONE), "top_k": (NumberRange(int, 0), NONE),
    "top_p": (NumberRange(float, 0, 1), NONE), "min_p": (NumberRange(float, 0, 1), NONE),
}  # fmt: skip
FILE_NAME = "generation_config.json"


def check_generation_config(folder: Path) -> None:
    """Check the types and ranges of the fields of a folder's generation_config.json.

    Raises:
        WeightsError: a field is wrong; the message names it and what is allowed.
    """
    fields = read_json(folder / FILE_NAME)
    check_fields(fields, FIELD_TYPES | (SAMPLING_RANGES if fields.get("do_sample") else {}), folder / FILE_NAME)


def sampling_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling defaults of a manifest, from the fields of generation_config.json."""
    if config.get("do_sample"):
        defaults = {name: config[name] for name in WARPERS if config.get(name) is not None}
        defaults.setdefault("top_k", DEFAULT_TOP_K)
    else:
        defaults = {"temperature": 0.0}
    if config.get("repetition_penalty"):
        defaults["repetition_penalty"] = config["repetition_penalty"]
    return defaults


def unsupported_fields(config: Any, followed: Collection[str] = ()) -> list[str]:
    """Return the names of fields of a generation config that have an effect and are not supported.

    Args:
        config (GenerationConfig | None): the model's; None is a backbone that transformers cannot generate with.
        followed (Collection[str]): fields that this pipeline supports and others do not.
    """
    if config is None:
        return []
    unsupported = UNSUPPORTED_DEFAULTS | (UNSUPPORTED_SAMPLING_DEFAULTS if config.do_sample else {})
    return [
        name for name, neutral in unsupported.items()
        if name not in followed and getattr(config, name, None) not in neutral
    ]  # fmt: skip


@dataclass(frozen=True)
class LengthLimits:
    """Length limits of generation_config.json; as in `generate`, max_new_tokens takes precedence."""

    max_new_tokens: int | None = None
    max_length: int | None = None  # counts the prompt

    def budget(self, prompt_length: int, default: int) -> int:
        """Return the maximum number of new tokens; not positive where the prompt leaves no room.

        Args:
            prompt_length (int): number of tokens of the prompt.
            default (int): the number of new tokens where the file names no limit.
        """
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        return default if self.max_length is None else self.max_length - prompt_length


def length_limits(config: Any) -> LengthLimits:
    """Return the length limits of a generation config."""
    return LengthLimits(config.max_new_tokens, config.max_length)


def build_constraints(
    config: Any, vocab_size: int, eos_token_ids: Collection[int], device: torch.device
) -> Constraints | None:
    """Build the token constraints of a generation config: suppressed and forced tokens, bad words, n-grams.

    Args:
        config (GenerationConfig): the model's.
        vocab_size (int): number of token ids; bad words outside of it have no effect.
        eos_token_ids (Collection[int]): ids that end a sequence, which are never bad words.
        device (torch.device): the device of the constraints' tensors.

    Raises:
        WeightsError: a forced token is outside the vocabulary, or the n-gram size is impossible.
    """
    if wrong := [id_ for id_ in token_ids(config, "forced_eos_token_id") if not 0 <= id_ < vocab_size]:
        raise WeightsError(
            f"forced_eos_token_id in generation_config.json is {wrong[0]}, which is no id of the model's {vocab_size}; "
            "mend the file."
        )
    words = [word for word in config.bad_words_ids or [] if word and not (len(word) == 1 and word[0] in eos_token_ids)]
    suppressed = token_ids(config, "suppress_tokens") + [word[0] for word in words if len(word) == 1]
    ngram = config.no_repeat_ngram_size or 0
    if not isinstance(ngram, int) or ngram < 0:
        raise WeightsError(f"no_repeat_ngram_size={ngram} in generation_config.json is not possible; mend the file.")
    bad_words = [word for word in words if len(word) > 1 and 0 <= word[-1] < vocab_size]
    return Constraints.from_ids(
        vocab_size, device, no_repeat_ngram=ngram, bad_words=bad_words,
        forced_last=token_ids(config, "forced_eos_token_id"), suppressed=suppressed,
        begin_suppressed=token_ids(config, "begin_suppress_tokens"),
    )  # fmt: skip


def resolve_eos_token_ids(configured: Any, tokenizer: Any, vocab_size: int, name: str) -> frozenset[int]:
    """Return the ids that end an answer.

    Args:
        configured (Any): eos_token_id in generation_config.json, one or several; None is the tokenizer's.
        tokenizer (Any): the model's tokenizer.
        vocab_size (int): number of token ids.
        name (str): the model's name, for errors.

    Raises:
        WeightsError: one is outside the vocabulary.
    """
    configured = tokenizer.eos_token_id if configured is None else configured
    ids = [] if configured is None else configured if isinstance(configured, list) else [configured]
    if wrong := [id_ for id_ in ids if not isinstance(id_, int) or not 0 <= id_ < vocab_size]:
        raise WeightsError(
            f"{name} is said to end with {wrong[0]!r}, and its ids are 0 to {vocab_size - 1}; correct eos_token_id in "
            "its generation_config.json."
        )
    return frozenset(ids)


def token_ids(config: Any, name: str) -> list[int]:
    """Return the token ids of a field that holds one id, a list of ids, or None."""
    value = getattr(config, name)
    return [] if value is None else [value] if isinstance(value, int) else list(value)
