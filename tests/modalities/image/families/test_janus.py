"""Janus against transformers' own loop: prompts, greedy codes, pixels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import polydraft
from polydraft.modalities.loading import load

from .conftest import Loaded

CAPTIONS = ["a red cat", "owls reading late at night", "a"]


def load_transformers_model(folder: Path) -> Any:
    model = hf.JanusForConditionalGeneration.from_pretrained(folder, dtype=torch.float64).eval()
    model.generation_config.generation_kwargs = {"boi_token_id": 3}
    return model


def read(folder: Path, captions: list[str]) -> Any:
    """Encode prompts as transformers' processor does, padded on the left."""
    words = hf.PreTrainedTokenizerFast.from_pretrained(folder)
    texts = [f"<bos><|User|>: {caption}\n\n<|Assistant|>:<begin_of_image>" for caption in captions]
    return words(texts, padding=True, return_tensors="pt", add_special_tokens=False, return_token_type_ids=False)


@pytest.mark.parametrize("rows", [1, 3])
def test_greedy_codes_are_those_of_the_stock_loop(folder_of: Callable[[str], Path], loaded: Loaded, rows: int) -> None:
    folder = folder_of("janus")
    inputs = read(folder, CAPTIONS[:rows])
    wanted = load_transformers_model(folder).generate(
        **inputs, generation_mode="image", do_sample=False, guidance_scale=3.0
    )
    pipe = loaded("janus", "float64")
    for method in ("ar", "jacobi(window=6)"):
        drawn = pipe(CAPTIONS[:rows], method=method, temperature=0.0, guidance_scale=3.0)
        assert drawn.tokens.equal(wanted), method
    assert len(wanted.unique()) > 5, "what comes before must matter"


@pytest.mark.parametrize("rows", [1, 3])
def test_unguided_codes_match_model_forward(folder_of: Callable[[str], Path], loaded: Loaded, rows: int) -> None:
    """transformers' loop needs guidance: one forward pass over prompt and codes predicts the same codes."""
    model, inputs = load_transformers_model(folder_of("janus")), read(folder_of("janus"), CAPTIONS[:rows])
    drawn = loaded("janus", "float64")(CAPTIONS[:rows], temperature=0.0, guidance_scale=1.0).tokens
    with torch.no_grad():
        text = model.get_input_embeddings()(inputs["input_ids"])
        codes = model.prepare_embeddings_for_image_generation(drawn[:, :-1])
        seen = torch.cat([inputs["attention_mask"], torch.ones_like(drawn[:, :-1])], 1)
        hidden = model.model.language_model(inputs_embeds=torch.cat([text, codes], 1), attention_mask=seen)[0]
        again = model.model.generation_head(hidden[:, text.shape[1] - 1 :]).argmax(-1)
    assert again.equal(drawn)


def test_pixels_are_those_of_the_models_decoder(folder_of: Callable[[str], Path], loaded: Loaded) -> None:
    drawn = loaded("janus", "float64")(CAPTIONS[0], seed=3)
    with torch.no_grad():
        wanted = load_transformers_model(folder_of("janus")).decode_image_tokens(drawn.tokens)[0]
    found = torch.frombuffer(bytearray(drawn.image.tobytes()), dtype=torch.uint8).view(64, 64, 3)
    assert (found - ((wanted.clamp(-1, 1) + 1) * 127.5)).abs().max() <= 0.51


def test_defaults_are_the_makers_and_not_the_librarys(loaded: Loaded) -> None:
    (prompt,) = loaded("janus").build_prompts(["a red cat"])
    assert (
        prompt.sampling_params.guidance_scale,
        prompt.sampling_params.temperature,
        prompt.sampling_params.top_k,
    ) == (5, 1, 0)
    assert prompt.branch_token_ids[0][0] == 0 and prompt.branch_token_ids[0][-1] == 3
    assert (
        prompt.branch_token_ids[1] == (0, *[2] * (len(prompt.branch_token_ids[0]) - 2), 3)
        and prompt.max_new_tokens == 16
    )


def test_other_grids_and_negative_prompts_are_refused(loaded: Loaded) -> None:
    pipe = loaded("janus")
    with pytest.raises(polydraft.InvalidArgument, match="size=32x32 is not possible; tiny-janus generates 64x64"):
        pipe("a cat", size="32x32")
    with pytest.raises(polydraft.InvalidArgument, match="reads no negative prompt"):
        pipe.run("a cat", negative_prompt="blurry")
    assert pipe("a cat", size="64x64").image.size == (64, 64)


def edited(folder: Path, to: Path, **fields: Any) -> Path:
    """Copy a folder and change its configuration."""
    config = hf.JanusConfig.from_pretrained(folder)
    for name, value in fields.items():
        part, _, field = name.partition("__")
        setattr(getattr(config, part), field, value)
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    config.save_pretrained(to)
    return to


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vq_config__num_embeddings": 64}, "do not fit"),
        ({"vision_config__num_image_tokens": 25}, "generates 25 codes and its decoder reads 16"),
    ],
)
def test_mismatched_codebook_or_grid_is_refused(
    folder_of: Callable[[str], Path], tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(polydraft.WeightsError, match=words) as caught:
        load(str(edited(folder_of("janus"), tmp_path / "other", **fields)))
    assert "\n" not in str(caught.value)
