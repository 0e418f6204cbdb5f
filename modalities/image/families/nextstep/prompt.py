"""What NextStep reads before a picture: the caption, how large the picture is in tokens, and that it begins.

    prompt_ids(tokenizer, "a baby panda", (32, 32), config.boi)

`<bos> caption <|image_area|>32*32 <boi>`, where a tokenizer without such a token writes no <bos>. Guidance's other
branch is the same with the negative prompt, or with no caption at all.
"""

from __future__ import annotations

from typing import Any

AREA_TOKEN = "<|image_area|>"
AREA = AREA_TOKEN + "{}*{}"


def prompt_ids(tokenizer: Any, caption: str, grid: tuple[int, int], boi: int) -> list[int]:
    """Ids of a caption and a picture of grid (h, w) tokens; control tokens that the caption spells are left out.

    tokenizer: transformers' fast one of the model's folder.
    """
    backend = tokenizer.backend_tokenizer
    control = set(tokenizer.added_tokens_decoder)
    words = [id_ for id_ in backend.encode(caption, add_special_tokens=False).ids if id_ not in control]
    area = backend.encode(AREA.format(*grid), add_special_tokens=False).ids
    begin = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
    return [*begin, *words, *area, boi]
