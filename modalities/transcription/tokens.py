"""Whisper's control tokens, and prompts that are made of them (Radford et al. 2022, arXiv 2212.04356, section 2.3).

    tokens = ControlTokens.from_config(model.generation_config, tokenizer)
    tokens.prompt("de", "transcribe", timestamps=True)        # <|startoftranscript|><|de|><|transcribe|>
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import InvalidArgument, WeightsError
from polydraft.core.sampling.timestamps import TimestampRules

TASKS = ("transcribe", "translate")
NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")  # names of the token that stands for a window without speech
PREVIOUS = "<|startofprev|>"


@dataclass(frozen=True)
class ControlTokens:
    """Ids of control tokens."""

    start: int  # begins a transcript
    end: int  # ends it
    previous: int | None  # begins the text before a window
    no_speech: int | None
    no_timestamps: int
    max_initial_index: int | None  # see `TimestampRules`
    languages: Mapping[str, int]  # by code; empty for a model of one language
    tasks: Mapping[str, int]

    @staticmethod
    def from_config(config: Any, tokenizer: Any) -> ControlTokens:
        """Read the ids from a generation config and a tokenizer of transformers.

        Raises:
            WeightsError: one that every transcript needs is missing.
        """
        vocabulary = tokenizer.get_vocab()
        no_timestamps = getattr(config, "no_timestamps_token_id", None) or vocabulary.get("<|notimestamps|>")
        end = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
        for name, found in (
            ("decoder_start_token_id", config.decoder_start_token_id), ("eos_token_id", end),
            ("no_timestamps_token_id", no_timestamps),
        ):  # fmt: skip
            if found is None:
                raise WeightsError(
                    f"generation_config.json has no {name}, which transcripts need; download the model again."
                )
        is_multilingual = getattr(config, "is_multilingual", bool(getattr(config, "lang_to_id", None)))
        languages = getattr(config, "lang_to_id", None) or {}
        return ControlTokens(
            config.decoder_start_token_id, end, vocabulary.get(PREVIOUS, getattr(config, "prev_sot_token_id", None)),
            next((vocabulary[name] for name in NO_SPEECH if name in vocabulary), None), no_timestamps,
            getattr(config, "max_initial_timestamp_index", None),
            {name.strip("<|>"): id_ for name, id_ in languages.items()} if is_multilingual else {},
            (getattr(config, "task_to_id", None) or {}) if is_multilingual else {},
        )  # fmt: skip

    @property
    def first_timestamp(self) -> int:
        """Return the id of the timestamp 0.00."""
        return self.no_timestamps + 1

    @property
    def rules(self) -> TimestampRules:
        """Return the rules for timestamps."""
        return TimestampRules(self.first_timestamp, self.end, self.no_timestamps, self.max_initial_index)

    def prompt(
        self, language: str | None, task: str, timestamps: bool, previous: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Return the prompt of a window.

        Args:
            language (str | None): its code; None for a model of one language.
            task (str): "transcribe", or "translate" into English.
            timestamps (bool): whether the transcript has timestamps.
            previous (Sequence[int]): ids of the text before the window.
        """
        ids = [self.start]
        if language is not None and self.languages:
            ids += [self.languages[language], self.tasks[task]]
        ids += [] if timestamps else [self.no_timestamps]
        before = [self.previous, *previous] if previous and self.previous is not None else []
        return tuple(before + ids)

    def check_language(self, language: str | None, name: str) -> str | None:
        """Return the code of a language, given by code or English name; None leaves it to be detected.

        Raises:
            InvalidArgument: the model does not know it.
        """
        if language is None or language == "auto":
            return None
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        code = TO_LANGUAGE_CODE.get(language.lower(), language.lower())
        if not self.languages:
            if code in ("en", ""):
                return None
            raise InvalidArgument(f"{name} hears English alone, not {language!r}; use a multilingual model.")
        if code not in self.languages:
            raise InvalidArgument(
                f"{name} knows no language {language!r:.40}{did_you_mean(code, list(self.languages))}; give one of "
                f"{', '.join(sorted(self.languages))}, or leave it out to have it detected."
            )
        return code

    def check_task(self, task: str, name: str) -> str:
        """Return the task; raise InvalidArgument where the model cannot do it."""
        if task not in TASKS:
            raise InvalidArgument(f"task {task!r:.40} is unknown; give one of {', '.join(TASKS)}.")
        if task == "translate" and not self.tasks:
            raise InvalidArgument(f"{name} hears English alone, so it translates nothing; use a multilingual model.")
        return task
