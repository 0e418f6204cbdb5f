"""Small models that transcribe as drafters of larger ones: their prompts, their features, and encoders that both share.

    draft_model = load_draft_model(pipe.target_model, pipe.tokenizer, folder, pipe.device, pipe.dtype)
    log_mel = features_of(card)             # of the target, and of a draft model whose features are others

Both hear the same windows. Where the encoders are equal, as those of Distil-Whisper (Gandhi et al. 2023, arXiv
2311.00430) and its teacher, a window is encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from polydraft.core.drafters.network.draft_model import VocabMapping
from polydraft.core.drafters.network.encoder_decoder import EncoderDecoderDraftModel
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.target.encoder_decoder import EncoderDecoderTarget
from polydraft.modalities.given_drafters import tokenizer_in
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.transcription.detection import build_manifest
from polydraft.modalities.transcription.features import LogMel
from polydraft.modalities.transcription.tokens import TASKS, ControlTokens
from polydraft.modalities.vocab_mapping import map_vocabularies
from polydraft.modalities.weights import load_pretrained

KIND = "lm"  # of drafter: an independent model
ENCODER_FIELDS = (
    "d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "activation_function",
    "max_source_positions", "num_mel_bins",
)  # fmt: skip


@dataclass(frozen=True)
class DraftPrompts:
    """Prompts of a draft model, made from the same options as its target's."""

    target: ControlTokens
    draft: ControlTokens
    vocab_mapping: VocabMapping  # of all other tokens

    def __call__(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the draft model's prompt for a prompt of the target."""
        start = len(ids) - 1 - ids[::-1].index(self.target.start)
        context, options = ids[1:start], ids[start + 1 :]
        language = next((code for code, token in self.target.languages.items() if token in options), "en")
        task = next((task for task, token in self.target.tasks.items() if token in options), TASKS[0])
        previous = self.vocab_mapping.input_ids[torch.tensor(context, dtype=torch.long)].tolist()
        return self.prompt(language, task, self.target.no_timestamps not in options, previous)

    def prompt(self, language: str, task: str, timestamps: bool, previous: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the draft model's prompt for options; a language that it does not know is its first one."""
        known = self.draft.languages
        code = language if language in known else next(iter(known), None)
        return self.draft.prompt(code, task, timestamps, previous)

    @property
    def num_extra_ids(self) -> int:
        """Return by how many ids the draft model's prompts are longer than the target's, 0 if they are not."""
        target = self.target.prompt(next(iter(self.target.languages), None), TASKS[0], timestamps=True)
        return max(0, len(self.prompt("en", TASKS[0], timestamps=True)) - len(target))

    def last_ids(self) -> dict[int, int]:
        """Return the last id of the draft model's prompt by the last id of the target's."""
        code = next(iter(self.target.languages), None)
        return {
            self.target.prompt(code, task, timestamps)[-1]: self.prompt(code or "en", task, timestamps)[-1]
            for task in self.target.tasks or TASKS[:1] for timestamps in (True, False)
        }  # fmt: skip


def is_draft_model(folder: Path) -> bool:
    """Return whether a drafter's folder holds a model that transcribes."""
    return build_manifest(folder) is not None


def features_of(card: ModelCard) -> LogMel:
    """Return the settings of a model's features, with those of its draft model where they differ.

    Raises:
        UnsupportedMethod: the draft model hears windows of another length.
    """
    settings = LogMel.from_folder(card.target)
    if KIND not in card.drafters or card.loaded_drafter is not None:  # a loaded one writes text and hears nothing
        return settings
    if not is_draft_model(folder := card.path / card.manifest["drafters"][KIND]):
        return settings
    draft = LogMel.from_folder(folder)
    if (draft.chunk_frames, draft.hop_length) != (settings.chunk_frames, settings.hop_length):
        raise UnsupportedMethod(
            f"the drafter in {folder} hears windows of {draft.chunk_length} s in steps of {draft.hop_length} samples, "
            f"and {card.name} of {settings.chunk_length} s in steps of {settings.hop_length}; give one that hears "
            "the same windows."
        )
    return settings if draft == settings else replace(settings, draft=draft)


def load_draft_model(
    target: PreTrainedModel, tokenizer: Any, folder: Path, device: torch.device, dtype: torch.dtype
) -> EncoderDecoderDraftModel:
    """Load a model that transcribes as the drafter of another one.

    Args:
        target (PreTrainedModel): the target.
        tokenizer (Any): the target's tokenizer.
        folder (Path): folder of the draft model.
        device (torch.device): the device of its weights.
        dtype (torch.dtype): the dtype of its weights.

    Raises:
        UnsupportedMethod: it hears windows of another length.
        WeightsError: the folder is malformed.
    """
    from transformers import WhisperForConditionalGeneration

    model: Any = load_pretrained(WhisperForConditionalGeneration, folder, device, dtype)
    positions, wanted = model.config.max_source_positions, target.config.max_source_positions
    if positions != wanted:
        raise UnsupportedMethod(
            f"the drafter in {folder} hears windows of {positions} positions and its target of {wanted}; give one that "
            "hears the same windows."
        )
    has_encoder = not have_equal_encoders(model, target)
    draft_target = EncoderDecoderTarget(model)
    if not has_encoder:  # so that its memory is free
        model.base_model.encoder = nn.Identity()
    sizes = target.config.vocab_size, model.config.vocab_size
    draft_tokenizer = tokenizer_in(folder)
    mapping = map_vocabularies(tokenizer, draft_tokenizer, *sizes)
    if mapping is None:
        return EncoderDecoderDraftModel(draft_target, None, tuple, has_encoder=has_encoder)
    prompts = DraftPrompts(
        ControlTokens.from_config(target.generation_config, tokenizer),
        ControlTokens.from_config(model.generation_config, draft_tokenizer), mapping,
    )  # fmt: skip
    mapping = map_control_tokens(prompts, *sizes).to(device)
    return EncoderDecoderDraftModel(draft_target, mapping, prompts, prompts.num_extra_ids, has_encoder)


def map_control_tokens(prompts: DraftPrompts, size: int, draft_size: int) -> VocabMapping:
    """Return the mapping of all tokens: control tokens by their meaning, whatever they are called.

    Args:
        prompts (DraftPrompts): control tokens of both models, and the mapping by text.
        size (int): number of the target's token ids.
        draft_size (int): number of the draft model's token ids.
    """
    target, draft = prompts.target, prompts.draft
    input_ids, logit_ids = prompts.vocab_mapping.input_ids.clone(), prompts.vocab_mapping.logit_ids.clone()
    pairs = {target.end: draft.end, target.no_timestamps: draft.no_timestamps}
    num_timestamps = min(size - target.first_timestamp, draft_size - draft.first_timestamp)
    pairs |= {target.first_timestamp + step: draft.first_timestamp + step for step in range(num_timestamps)}
    ids, draft_ids = torch.tensor(list(pairs)), torch.tensor(list(pairs.values()))
    input_ids[ids] = logit_ids[ids] = draft_ids
    for token, draft_token in prompts.last_ids().items():
        input_ids[token] = draft_token
    return VocabMapping(input_ids, logit_ids)


def have_equal_encoders(model: PreTrainedModel, other: PreTrainedModel) -> bool:
    """Return whether two models encode sound alike: their encoders have equal settings and weights.

    Weights count as equal if they are in the dtype of `model`; those of `other` may be kept in a wider one.
    """
    if any(getattr(model.config, name) != getattr(other.config, name) for name in ENCODER_FIELDS):
        return False
    weights, others = model.get_encoder().state_dict(), other.get_encoder().state_dict()
    return weights.keys() == others.keys() and all(
        torch.equal(weight, others[name].to(weight)) for name, weight in weights.items()
    )
