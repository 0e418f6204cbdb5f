"""ImageGPT against transformers' loop, and images that continue another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

import polydraft
from polydraft.modalities.loading import load

from .conftest import Loaded
from .folders import COLOURS, IMAGEGPT_SIDE

PLACES = IMAGEGPT_SIDE**2


@pytest.mark.parametrize("rows", [1, 3])
def test_greedy_colours_are_those_of_the_stock_loop(
    folder_of: Callable[[str], Path], loaded: Loaded, rows: int
) -> None:
    model = hf.ImageGPTForCausalImageModeling.from_pretrained(folder_of("imagegpt"), dtype=torch.float64).eval()
    begin = torch.full((rows, 1), COLOURS)
    wanted = model.generate(begin, max_length=PLACES + 1, do_sample=False, attention_mask=torch.ones_like(begin))
    pipe = loaded("imagegpt", "float64")
    for method in ("ar", "jacobi(window=6)", "early-exit(layers=2,depth=3)"):
        drawn = pipe(["x"] * rows, temperature=0.0, method=method)
        assert drawn.tokens.equal(wanted[:, 1:]), method
    assert len(wanted.unique()) > 4


def test_imagegpt_ignores_prompts_and_refuses_guidance(loaded: Loaded) -> None:
    pipe = loaded("imagegpt")
    drawn = pipe("a red cat", seed=4)
    assert drawn.ignored_words == ("a", "red", "cat") and drawn.tokens.equal(pipe("owls", seed=4).tokens)
    with pytest.raises(polydraft.InvalidArgument, match="tiny-imagegpt generates without guidance"):
        pipe("a cat", guidance_scale=2.0)


def test_imagegpt_continues_upper_half_of_init_image(loaded: Loaded) -> None:
    pipe = loaded("imagegpt")
    whole = pipe("x", seed=4)
    for method in ("ar", "jacobi(window=5)"):
        again = pipe("x", seed=9, prime=whole.image, method=method)
        half = PLACES // 2
        assert again.tokens[0, :half].equal(whole.tokens[0, :half]) and again.stats.tokens == PLACES - half
        assert not again.tokens.equal(whole.tokens) and (again.tokens >= 0).all()
    top = np.asarray(again.image)[: IMAGEGPT_SIDE // 2]
    assert np.array_equal(top, np.asarray(whole.image)[: IMAGEGPT_SIDE // 2])
    assert pipe("x", seed=4).tokens.equal(whole.tokens), "what was asked once is forgotten"


def test_transparent_prime_is_white(loaded: Loaded) -> None:
    pipe = loaded("imagegpt")
    begun = [pipe.run("x", prime=Image.new(mode, (8, 8), colour)).prompts for mode, colour in (("RGBA", 0), ("L", 255))]
    assert begun[0][0].branch_token_ids == begun[1][0].branch_token_ids


def test_others_go_on_from_nothing(loaded: Loaded) -> None:
    with pytest.raises(polydraft.InvalidArgument, match="tiny-janus begins every image anew"):
        loaded("janus").run("a cat", prime=Image.new("RGB", (8, 8)))


def test_colours_that_do_not_match_are_one_sentence(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for file in folder_of("imagegpt").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "preprocessor_config.json").write_text('{"clusters": [[0, 0, 0]]}')
    with pytest.raises(polydraft.WeightsError, match="generates 16 colours at 36 places, and its .* names 1"):
        load(str(folder))
