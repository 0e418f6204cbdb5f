"""Models that are served: how they are chosen, loaded and warmed up, and what they say about themselves."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from polydraft.core.errors import InvalidArgument, PolydraftError
from polydraft.modalities.hub import is_repository
from polydraft.modalities.loading import ModelCard, load
from polydraft.modalities.run import Driver

log = logging.getLogger("polydraft.server")


@dataclass(frozen=True)
class ModelChoice:
    """What `load` takes. model: an embedded one's name, a folder or a hub repository; modality: what it must be for."""

    model: str
    modality: str | None = None
    drafter: str | None = None
    codec: str | None = None
    method: str | None = None
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class Served:
    """A model that is loaded. pipe: its pipeline; whatever works with tensors is to be called by `engine.compute`."""

    name: str
    pipe: Any = field(repr=False)
    created: int = 0
    repository: str = ""  # "organisation/name" where it was chosen so; requests may call it that, too

    @property
    def card(self) -> ModelCard:
        return self.pipe.card

    @property
    def modality(self) -> str:
        """ "image", "speech" or "vlm"."""
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
        """ "128x128", of pictures it draws unless asked for others; empty for other models."""
        return str(self.pipe.dimensions) if self.modality == "image" else ""

    def answers_to(self, name: str) -> bool:
        """Return whether requests may call it `name`."""
        return name == self.name or (name != "" and name == self.repository)

    def prompts(self, arguments: dict[str, Any]) -> int:
        """As how many prompts a request counts."""
        if self.modality == "speech":
            return 1
        if self.modality == "vlm":
            return max(1, sum(isinstance(turns, list) for turns in arguments.get("messages") or ()))
        texts, n = arguments.get("prompt"), arguments.get("n", 1)
        if not isinstance(n, int) or n < 1:
            raise InvalidArgument(f"n={n!r:.20} is not possible; it must be a whole number from 1.")
        return n * (len(texts) if isinstance(texts, list) else 1)


def read(choice: ModelChoice) -> Served:
    """Load a model; on the compute thread."""
    pipe = load(
        choice.model, codec=choice.codec, drafter=choice.drafter, method=choice.method, device=choice.device,
        dtype=choice.dtype, modality=choice.modality,
    )  # fmt: skip
    return Served(pipe.card.name, pipe, int(time.time()), choice.model if is_repository(choice.model) else "")


def warm_up(served: Served) -> None:
    """A short request of two rows, so that the first real ones do not pay for first uses; on the compute thread."""
    from PIL import Image

    asked: dict[str, dict[str, Any]] = {
        "image": {"prompt": ["a cat", "a dog"], "partial_images": 1},
        "speech": {"text": "Yes. No."},
        "vlm": {"image": Image.new("RGB", (64, 64)), "question": ["What is this?"] * 2, "max_new_tokens": 16},
    }
    try:
        run = served.pipe.run(**asked[served.modality])
        driver = Driver(run.method)
        while not run.over:
            driver.join(run, run.due(2))
            driver.turn()
            run.news()
        run.result()
    except PolydraftError as error:  # a model that needs more, such as a recording of a voice
        log.info("%s was not warmed up: %s", served.name, error)
