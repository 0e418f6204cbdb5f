"""What a checkpoint asks for in generation_config.json: sampling, constraints, and what of it is not followed.

    sampling(settings)                      # defaults of a card
    found = constraints(model.generation_config, vocab, eos, device)
    unheeded(model.generation_config)       # names of what has no place in the law; said once, never dropped in silence
    lengths(model.generation_config)        # how long an answer may be if nobody says

A field that `transformers` gives a default of its own has that default here, so that "as its makers sample it" means
what `generate` does with the same file.
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
from polydraft.core.folders.fields import Range, check_fields
from polydraft.core.folders.json_files import read_json
from polydraft.core.law.constraints import Constraints

WARPERS = ("temperature", "top_k", "top_p", "min_p")  # mean nothing where the makers decode greedily
TOP_K = 50  # of `generate`, where a file that samples names none
OFF: dict[str, tuple[Any, ...]] = {  # fields that have no place in the law here, and values that change nothing
    "sequence_bias": (None,), "exponential_decay_length_penalty": (None,), "forced_bos_token_id": (None,),
    "min_length": (None, 0), "min_new_tokens": (None, 0), "num_beams": (None, 1), "num_beam_groups": (None, 1),
    "diversity_penalty": (None, 0.0), "penalty_alpha": (None, 0.0), "dola_layers": (None,), "constraints": (None,),
    "force_words_ids": (None,), "stop_strings": (None,), "watermarking_config": (None,), "token_healing": (None, False),
    "encoder_repetition_penalty": (None, 1.0), "encoder_no_repeat_ngram_size": (None, 0), "guidance_scale": (None, 1),
    "max_new_tokens": (None,), "max_length": (None,), "max_time": (None,),
}  # fmt: skip
LENGTHS = frozenset({"max_new_tokens", "max_length"})  # heeded where something else does not say how long a row is
OFF_SAMPLED: dict[str, tuple[Any, ...]] = {
    "typical_p": (None, 1.0), "epsilon_cutoff": (None, 0.0), "eta_cutoff": (None, 0.0), "top_h": (None,),
}  # fmt: skip
NONE = type(None)
ID, NUMBER = Range(int, -math.inf), Range(float, -math.inf)  # ids outside the vocabulary say nothing
SOME = GenericAlias(list, (ID,))
IDS = (ID, SOME, NONE)
TYPES: dict[str, Any] = {  # of fields that are followed, whatever they say
    "do_sample": (bool, NONE), "temperature": (NUMBER, NONE), "top_k": (ID, NONE), "top_p": (NUMBER, NONE),
    "min_p": (NUMBER, NONE), "repetition_penalty": (Range(float, 0), NONE), "eos_token_id": IDS,
    "pad_token_id": (ID, NONE), "bos_token_id": (ID, NONE), "forced_eos_token_id": IDS, "suppress_tokens": (SOME, NONE),
    "begin_suppress_tokens": (SOME, NONE), "bad_words_ids": (GenericAlias(list, (SOME,)), NONE),
    "no_repeat_ngram_size": (Range(int, 0), NONE), **dict.fromkeys(LENGTHS, (Range(int, 1), NONE)),
}  # fmt: skip
RANGES: dict[str, Any] = {  # of those that a distribution is made with
    "temperature": (Range(float, 0), NONE), "top_k": (Range(int, 0), NONE), "top_p": (Range(float, 0, 1), NONE),
    "min_p": (Range(float, 0, 1), NONE),
}  # fmt: skip
FILE = "generation_config.json"


def check_generation(folder: Path) -> None:
    """Check the types and ranges of what a folder's generation_config.json says.

    Raises:
        WeightsError: names the field and what is allowed.
    """
    fields = read_json(folder / FILE)
    check_fields(fields, TYPES | (RANGES if fields.get("do_sample") else {}), folder / FILE)


def sampling(own: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling defaults of a card, from the file's fields."""
    if own.get("do_sample"):
        found = {name: own[name] for name in WARPERS if own.get(name) is not None}
        found.setdefault("top_k", TOP_K)
    else:
        found = {"temperature": 0.0}
    if own.get("repetition_penalty"):
        found["repetition_penalty"] = own["repetition_penalty"]
    return found


def unheeded(own: Any, heeded: Collection[str] = ()) -> list[str]:
    """Names of fields of a generation config that ask for something else than what is done here.

    heeded: fields that the pipeline follows, and others do not.
    """
    if own is None:  # a backbone that generates nothing itself
        return []
    known = OFF | (OFF_SAMPLED if own.do_sample else {})
    return [name for name, off in known.items() if name not in heeded and getattr(own, name, None) not in off]


@dataclass(frozen=True)
class Lengths:
    """Bound answers where nobody says, as `generate` does: the first length that is there counts."""

    max_new_tokens: int | None = None
    max_length: int | None = None  # with the prompt

    def budget(self, prompt_length: int, usual: int) -> int:
        """Return how many tokens an answer to a prompt of so many may have; not positive where there is no room."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        return usual if self.max_length is None else self.max_length - prompt_length


def lengths(own: Any) -> Lengths:
    """Return the lengths that a generation config asks for."""
    return Lengths(own.max_new_tokens, own.max_length)


def constraints(own: Any, vocab: int, eos: Collection[int], device: torch.device) -> Constraints | None:
    """What a generation config rules out and demands; eos: ids that end a sequence, which are no bad words.

    Ids outside the vocabulary are ruled out anyhow; to demand one is an error.
    """
    if wrong := [id_ for id_ in ids(own, "forced_eos_token_id") if not 0 <= id_ < vocab]:
        raise WeightsError(
            f"forced_eos_token_id in generation_config.json is {wrong[0]}, which is no id of the model's {vocab}; mend "
            "the file."
        )
    words = [word for word in own.bad_words_ids or [] if word and not (len(word) == 1 and word[0] in eos)]
    suppressed = ids(own, "suppress_tokens") + [word[0] for word in words if len(word) == 1]
    ngram = own.no_repeat_ngram_size or 0
    if not isinstance(ngram, int) or ngram < 0:
        raise WeightsError(f"no_repeat_ngram_size={ngram} in generation_config.json is not possible; mend the file.")
    return Constraints.of(
        vocab, device, ngram=ngram, words=[word for word in words if len(word) > 1 and 0 <= word[-1] < vocab],
        forced=ids(own, "forced_eos_token_id"), suppressed=suppressed, first=ids(own, "begin_suppress_tokens"),
    )  # fmt: skip


def ids(own: Any, name: str) -> list[int]:
    """One id, or a list of them, or none."""
    value = getattr(own, name)
    return [] if value is None else [value] if isinstance(value, int) else list(value)
