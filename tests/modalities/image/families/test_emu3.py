"""Emu3 against transformers' own loop, its prompts, and what it refuses; its rows are in `test_rows.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import polydraft
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.image.families.emu3.family import NEGATIVE_PROMPT, POSITIVE_SUFFIX
from polydraft.modalities.image.pipeline import MAX_CACHED_GRIDS
from polydraft.modalities.loading import load

from .conftest import Loaded

CAPTIONS = ["a red cat", "owls reading late at night", "a"]
HIGH, WIDE = 3, 4


def load_transformers_model(folder: Path) -> tuple[Any, Any]:
    model = hf.Emu3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float64).eval()
    return model, hf.PreTrainedTokenizerFast.from_pretrained(folder)


def read(words: Any, texts: list[str]) -> Any:
    """Encode prompts as transformers' processor does, padded on the left."""
    prompts = [f"<|extra_203|>{text}<|image start|>{HIGH}*{WIDE}<|image token|>" for text in texts]
    return words(prompts, padding=True, return_tensors="pt", return_token_type_ids=False)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_greedy_codes_are_those_of_the_stock_loop(
    folder_of: Callable[[str], Path], loaded: Loaded, rows: int, guidance: float
) -> None:
    model, words = load_transformers_model(folder_of("emu3"))
    id_of = words.convert_tokens_to_ids
    codes = list(model.vocabulary_mapping.image_tokens)
    ends = [id_of(name) for name in ("<|extra_201|>", "<|image end|>", "<|extra_204|>")]

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        """Return the allowed ids, as in transformers' documentation."""
        behind = len(ids) - int((ids == id_of("<|image token|>")).nonzero()[0])
        if behind > HIGH * (WIDE + 1):
            return [ends[behind - HIGH * (WIDE + 1) - 1]]
        return [id_of("<|extra_200|>")] if behind % (WIDE + 1) == 0 else codes

    inputs, negative = (
        read(words, [text + POSITIVE_SUFFIX for text in CAPTIONS[:rows]]),
        read(words, [NEGATIVE_PROMPT] * rows),
    )
    guided = {
        "guidance_scale": guidance, "negative_prompt_ids": negative["input_ids"],
        "negative_prompt_attention_mask": negative["attention_mask"],
    }  # fmt: skip
    generated = model.generate(
        **inputs, **(guided if guidance != 1 else {}), prefix_allowed_tokens_fn=allowed, do_sample=False,
        max_new_tokens=HIGH * (WIDE + 1) + 3,
    )[:, inputs["input_ids"].shape[1] :]  # fmt: skip
    wanted = generated[:, :-3].view(rows, HIGH, WIDE + 1)[..., :-1].flatten(1) - id_of("<|visual token 000000|>")
    pipe = loaded("emu3", "float64")
    drawn = pipe(CAPTIONS[:rows], temperature=0.0, guidance_scale=guidance, method="jacobi(window=6)")
    assert drawn.tokens.equal(wanted) and len(wanted.unique()) > 3
    if rows == 1:
        with torch.no_grad():
            pixels = model.decode_image_tokens(image_tokens=generated, height=HIGH, width=WIDE)[0]
        found = torch.frombuffer(bytearray(drawn.image.tobytes()), dtype=torch.uint8).view(8 * HIGH, 8 * WIDE, 3)
        assert (found - ((pixels.clamp(-1, 1) + 1) * 127.5).permute(1, 2, 0)).abs().max() <= 0.51


def test_prompts_are_the_makers(loaded: Loaded) -> None:
    pipe = loaded("emu3").with_size("32x24")
    (prompt,) = pipe.build_prompts(["a red cat"])
    words = pipe.family.prompt_tokenizer.tokenizer.convert_tokens_to_ids
    size_ids = words(["<|image start|>", "3", "*", "4", "<|image token|>"])
    assert all(list(branch[-5:]) == size_ids for branch in prompt.branch_token_ids)
    assert len({len(branch) for branch in prompt.branch_token_ids}) == 2, "branches have lengths of their own"
    assert (prompt.sampling_params.guidance_scale, prompt.sampling_params.top_k) == (3, 2048)
    one, other = (pipe("a red cat", negative_prompt=text).tokens for text in (None, "night"))
    assert not one.equal(other) and pipe("a red cat", negative_prompt=NEGATIVE_PROMPT).tokens.equal(one)
    assert loaded("emu3").with_size("16x40").build_prompts(["a"])[0].max_new_tokens == 5 * 3 - 1


def test_what_does_not_fit_is_one_sentence(folder_of: Callable[[str], Path], loaded: Loaded, tmp_path: Path) -> None:
    with pytest.raises(polydraft.InvalidArgument, match="8100 tokens and tiny-emu3 holds 128 positions"):
        loaded("emu3").run("a cat", size="720x720")
    folder = tmp_path / "other"
    folder.mkdir()
    for file in folder_of("emu3").iterdir():
        text = file.read_bytes()
        if file.name == "tokenizer.json":
            text = text.replace(b"<|visual token 000031|>", b"<|visual token 000099|>")
        (folder / file.name).write_bytes(text)
    with pytest.raises(polydraft.WeightsError, match=r"has no <\|visual token 000031\|>"):
        load(str(folder))


def test_cached_sizes_are_bounded(folder_of: Callable[[str], Path]) -> None:
    pipe = load(str(folder_of("emu3")), dtype="float32", modality="image")
    side = pipe.token_side
    last = [pipe.with_size(f"{columns * side}x{side}").family for columns in range(1, 3 * MAX_CACHED_GRIDS)][-1]
    assert (
        len(pipe._grids) == MAX_CACHED_GRIDS
        and pipe.with_size(f"{(3 * MAX_CACHED_GRIDS - 1) * side}x{side}").family is last
    )


@pytest.mark.parametrize("spare", [0, 1, 5, 40])
def test_size_without_room_for_prompt_is_refused(folder_of: Callable[[str], Path], spare: int) -> None:
    """Row ends and the prompt need positions besides the codes; what does not fit is refused before generation."""
    pipe = load(str(folder_of("emu3")), dtype="float32", modality="image")
    size = f"{(pipe.context_len - spare) * pipe.token_side}x{pipe.token_side}"
    with pytest.raises(InvalidArgument, match="positions"):
        pipe("a cat", size=size)
