"""What a request has come to, as often as a page can show it: the one way in which the tabs use the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polydraft.apps.ui.views.counts import Counts

SILENCE: NDArray[np.float32] = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Frame:
    """passes: which target pass made each token, 0 for none. picture, audio, pieces: what an image, speech or answering
    model has made, `audio` since the last frame; length: seconds the speech will take, about. result: at the end.
    """

    counts: Counts
    passes: Sequence[int] = ()
    picture: Image.Image | None = None
    audio: NDArray[np.float32] = field(default_factory=lambda: SILENCE)
    length: float = 0.0
    pieces: Sequence[str] = ()
    result: Any = None
