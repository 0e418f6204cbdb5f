"""Table of what the codes of the emoji world's tokenizer show: backgrounds, and which kinds of objects.

It lies beside the tokenizer and is a stage of `polydraft train tiny-image`: a scene plan has settled which object
covers a cell, and most codes never show that object, or never a background.

    contents = load(folder, codes=4096)     # [1 + kinds, V] bool, backgrounds first, or None
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


def save(contents: Tensor, folder: Path) -> None:
    """Write the table `[1 + kinds, V]` bool, packed to bits."""
    bits = torch.from_numpy(np.packbits(contents.numpy(), axis=1))
    write_tensors(folder / FILE, {"bits": bits, "codes": torch.tensor(contents.shape[1])})


def load(folder: Path, codes: int) -> Tensor | None:
    """Read the table of a tokenizer with `codes` codes; None if its folder has none.

    Raises:
        WeightsError: the table is another tokenizer's.
    """
    if not (folder / FILE).exists():
        return None
    stored = read_tensors(folder / FILE)
    contents = torch.from_numpy(np.unpackbits(stored["bits"].numpy(), axis=1, count=int(stored["codes"]))).bool()
    if contents.shape != (1 + len(KINDS), codes) or not contents.any(1).all():
        raise WeightsError(
            f"{folder / FILE} does not tell of {len(KINDS)} kinds of things in {codes} codes; install the model again, "
            "or delete that file, and any code may stand anywhere."
        )
    return contents
