"""NextStep's prompts: the caption, the size of the image in tokens, and the token that begins it.

    prompt_ids(tokenizer, "a baby panda", (32, 32), config.boi)

`<bos> caption <|image_area|>32*32 <boi>`, where a tokenizer without such a token writes no <bos>. The other guidance
branch is the same with the negative prompt, or with no caption at all.
"""

from __future__ import annotations

from typing import Any

AREA_TOKEN = "<|image_area|>"
AREA = AREA_TOKEN + "{}*{}"


def prompt_ids(tokenizer: Any, caption: str, grid: tuple[int, int], boi: int) -> list[int]:
    """Encode a caption and an image size; control tokens that the caption spells are left out.

    Args:
        tokenizer (Any): transformers' fast tokenizer of the model's folder.
        caption (str): what the branch reads.
        grid (tuple[int, int]): rows and columns of tokens.
        boi (int): id that begins an image.
    """
    backend = tokenizer.backend_tokenizer
    control = set(tokenizer.added_tokens_decoder)
    words = [id_ for id_ in backend.encode(caption, add_special_tokens=False).ids if id_ not in control]
    area = backend.encode(AREA.format(*grid), add_special_tokens=False).ids
    begin = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
    return [*begin, *words, *area, boi]
