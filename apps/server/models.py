"""Served models: their choice, loading, warm-up and description."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from polydraft.core.checks.extras import require
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import InvalidArgument, PolydraftError, PromptError, UnsupportedModel
from polydraft.modalities.hub import is_repository
from polydraft.modalities.loading import check_model, load
from polydraft.modalities.model_card import ModelCard
from polydraft.modalities.request import BatchScheduler

log: logging.Logger = logging.getLogger("polydraft.server")


@dataclass(frozen=True)
class ModelChoice:
    """Model to load: an embedded name, a folder or a hub repository, and the modality that it must have."""

    model: str
    modality: str | None = None
    drafter: tuple[str, ...] = ()
    codec: str | None = None
    method: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    reference: str | None = None  # text file that answers may quote


@dataclass(frozen=True)
class Served:
    """Loaded model; tensor work of its `pipe` must go through `engine.compute`."""

    name: str
    pipe: Any = field(repr=False)
    created: int = 0
    repository: str = ""  # "organisation/name" if loaded by it; an alias in requests

    @property
    def card(self) -> ModelCard:
        return self.pipe.card

    @property
    def modality(self) -> str:
        """ "image", "speech", "vlm" or "transcription"."""
        return self.card.modality

    @property
    def summary(self) -> str:
        return self.card.summary

    @property
    def methods(self) -> list[str]:
        return self.pipe.available_methods()

    @property
    def default_method(self) -> str:
        return self.pipe.default_method.name

    @property
    def voices(self) -> list[str]:
        return list(self.pipe.voices) if self.modality == "speech" else []

    @property
    def size(self) -> str:
        """Return the default image size, such as "128x128"; empty for models that generate no images."""
        return str(self.pipe.dimensions) if self.modality == "image" else ""

    def answers_to(self, name: str) -> bool:
        """Return whether requests may call it `name`."""
        return name == self.name or (name != "" and name == self.repository)

    def prompts(self, arguments: dict[str, Any]) -> int:
        """Return the number of prompts that a request counts as."""
        if self.modality in ("speech", "transcription"):
            return 1
        if self.modality == "vlm":
            return max(1, sum(isinstance(turns, list) for turns in arguments.get("messages") or ()))
        texts, n = arguments.get("prompt"), arguments.get("n", 1)
        if not isinstance(n, int) or n < 1:
            raise InvalidArgument(f"n={n!r:.20} is not possible; it must be a whole number from 1.")
        return n * (len(texts) if isinstance(texts, list) else 1)


def check(choice: ModelChoice) -> None:
    """Refuse what cannot be loaded before any weights are fetched or read.

    Raises:
        PolydraftError: the errors of `load`.
    """
    card = check_model(
        choice.model, codec=choice.codec, drafter=choice.drafter, methods=[choice.method] if choice.method else [],
        device=choice.device, dtype=choice.dtype, modality=choice.modality, reference=choice.reference,
    )  # fmt: skip
    if card.modality == "transcription":
        require("av", "transcription of uploaded sound")


def read(choice: ModelChoice) -> Served:
    """Load a model; on the compute thread."""
    pipe = load(
        choice.model, codec=choice.codec, drafter=choice.drafter, method=choice.method, device=choice.device,
        dtype=choice.dtype, modality=choice.modality, reference=choice.reference,
    )  # fmt: skip
    return Served(pipe.card.name, pipe, int(time.time()), choice.model if is_repository(choice.model) else "")


def warm_up(served: Served) -> None:
    """Run a short request of two rows on the compute thread, so that real ones do not pay for the first use.

    Raises:
        PolydraftError: the request fails, as those of clients would.
    """
    try:
        decode_example(served)
    except (PromptError, InvalidArgument) as error:  # it needs more than an example has, such as a recorded voice
        log.info("%s was not warmed up: %s", served.name, error)
    except PolydraftError:
        raise
    except Exception as error:
        raise system_error(error, f"{served.name} cannot answer") or UnsupportedModel(
            f"{served.name} fails at its first request ({type(error).__name__}: {one_line(error)}); use another "
            "method, device or dtype."
        ) from error


def decode_example(served: Served) -> None:
    """Decode an example request to its end, two rows at a time; raise the error of a row that cannot go on."""
    import numpy as np
    from PIL import Image

    second = np.sin(np.arange(16_000, dtype=np.float32) * 0.2)
    examples: dict[str, dict[str, Any]] = {
        "image": {"prompt": ["a cat", "a dog"], "partial_images": 1},
        "speech": {"text": "Yes. No."},
        "vlm": {"question": ["What is this?"] * 2, "max_new_tokens": 16},
        "transcription": {"audio": (second, 16_000), "temperature": 0.0},
    }
    if not served.card.is_text_only:
        examples["vlm"]["image"] = Image.new("RGB", (64, 64))
    run = served.pipe.run(**examples[served.modality])
    scheduler = BatchScheduler(run.method)
    while not run.is_finished:
        scheduler.add_prompts(run, run.schedulable_prompts(2))
        scheduler.step()
        run.poll_events()
    for error in run.errors:
        raise error
    run.result()


def one_line(error: Exception) -> str:
    """Return the first line of an error's message, shortened and without a full stop."""
    return str(error).strip().partition("\n")[0][:120].rstrip(". ")
