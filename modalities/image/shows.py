"""What the codes of the emoji world's tokenizer show: grounds, and which things.

A table beside the tokenizer, a stage of `polydraft train tiny-image`: a plan has settled which thing stands on a cell,
and of the codes that it may have most never show that thing, or never a ground.

    shows = load(folder, codes=4096)     # [1 + kinds, V] bool, grounds first, or None
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polydraft.core.errors import WeightsError
from polydraft.core.folders.weight_files import read_tensors
from polydraft.modalities.output import write_tensors
from polydraft.modalities.world.glyphs import KINDS

FILE = "shows.safetensors"


def save(shows: Tensor, folder: Path) -> None:
    """`[1 + kinds, V]` bool, in bits."""
    bits = torch.from_numpy(np.packbits(shows.numpy(), axis=1))
    write_tensors(folder / FILE, {"bits": bits, "codes": torch.tensor(shows.shape[1])})


def load(folder: Path, codes: int) -> Tensor | None:
    """What `save` wrote of so many codes; None where nobody looked. Raises WeightsError for another world's table."""
    if not (folder / FILE).exists():
        return None
    found = read_tensors(folder / FILE)
    shows = torch.from_numpy(np.unpackbits(found["bits"].numpy(), axis=1, count=int(found["codes"]))).bool()
    if shows.shape != (1 + len(KINDS), codes) or not shows.any(1).all():
        raise WeightsError(
            f"{folder / FILE} does not tell of {len(KINDS)} kinds of things in {codes} codes; install the model again, "
            "or delete that file, and any code may stand anywhere."
        )
    return shows
