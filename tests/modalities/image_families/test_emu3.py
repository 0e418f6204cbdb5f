"""Emu3 against transformers' own loop, and its rows: their length, and that their ends cost no pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import polydraft
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.registry import parse
from polydraft.modalities.image.families.emu3 import BLAME, PRAISE
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load

from ...decoding import run
from .conftest import Loaded
from .folders import EMU3_CODES

CAPTIONS = ["a red cat", "owls reading late at night", "a"]
HIGH, WIDE = 3, 4


def own(folder: Path) -> tuple[Any, Any]:
    model = hf.Emu3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float64).eval()
    return model, hf.PreTrainedTokenizerFast.from_pretrained(folder)


def read(words: Any, texts: list[str]) -> Any:
    """As transformers' processor writes prompts, padded on the left."""
    said = [f"<|extra_203|>{text}<|image start|>{HIGH}*{WIDE}<|image token|>" for text in texts]
    return words(said, padding=True, return_tensors="pt", return_token_type_ids=False)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_greedy_codes_are_those_of_the_stock_loop(
    folder_of: Callable[[str], Path], loaded: Loaded, rows: int, guidance: float
) -> None:
    model, words = own(folder_of("emu3"))
    id_of = words.convert_tokens_to_ids
    codes = list(model.vocabulary_mapping.image_tokens)
    ends = [id_of(name) for name in ("<|extra_201|>", "<|image end|>", "<|extra_204|>")]

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        """As transformers' documentation has it."""
        behind = len(ids) - int((ids == id_of("<|image token|>")).nonzero()[0])
        if behind > HIGH * (WIDE + 1):
            return [ends[behind - HIGH * (WIDE + 1) - 1]]
        return [id_of("<|extra_200|>")] if behind % (WIDE + 1) == 0 else codes

    inputs, negative = read(words, [text + PRAISE for text in CAPTIONS[:rows]]), read(words, [BLAME] * rows)
    guided = {
        "guidance_scale": guidance, "negative_prompt_ids": negative["input_ids"],
        "negative_prompt_attention_mask": negative["attention_mask"],
    }  # fmt: skip
    said = model.generate(
        **inputs, **(guided if guidance != 1 else {}), prefix_allowed_tokens_fn=allowed, do_sample=False,
        max_new_tokens=HIGH * (WIDE + 1) + 3,
    )[:, inputs["input_ids"].shape[1] :]  # fmt: skip
    wanted = said[:, :-3].view(rows, HIGH, WIDE + 1)[..., :-1].flatten(1) - id_of("<|visual token 000000|>")
    pipe = loaded("emu3", "float64")
    drawn = pipe(CAPTIONS[:rows], temperature=0.0, guidance_scale=guidance, method="jacobi(window=6)")
    assert drawn.tokens.equal(wanted) and len(wanted.unique()) > 3
    if rows == 1:
        with torch.no_grad():
            pixels = model.decode_image_tokens(image_tokens=said, height=HIGH, width=WIDE)[0]
        found = torch.frombuffer(bytearray(drawn.image.tobytes()), dtype=torch.uint8).view(8 * HIGH, 8 * WIDE, 3)
        assert (found - ((pixels.clamp(-1, 1) + 1) * 127.5).permute(1, 2, 0)).abs().max() <= 0.51


METHODS = (
    "ar", "pld", "jacobi(window=1)", "jacobi(window=7)", "jacobi(window=6,init=above)", "sjd(window=6)",
    "sjd-maximal(window=6)", "early-exit(layers=2,depth=4)", "early-exit(layers=2,depth=2,width=3)+target-only",
    "jacobi+lantern(k=5,delta=0.9)", "jacobi+lantern++(k=5)", "jacobi+gsd", "jacobi+typical", "jacobi+top-k(k=9)",
    "jacobi+tolerance", "jacobi+pcg", "sjd+lantern-ratio(k=5,delta=0.9)", "sjd+typical-ratio", "sjd+ssd", "sjd+cool-sd",
    "sjd-maximal+lenience", "pld+top-k-ratio", "early-exit(layers=2)+recursive", "early-exit(layers=2)+block",
)  # fmt: skip


def check_rows(pipe: ImagePipeline, ids: torch.Tensor, wide: int) -> None:
    ends = (torch.arange(len(ids)) + 1) % (wide + 1) == 0
    assert len(ids) == pipe.budget and ((ids == EMU3_CODES) == ends).all()


@pytest.mark.parametrize("method", METHODS)
def test_no_drawn_row_has_a_wrong_length(loaded: Loaded, method: str) -> None:
    """Whatever drafts and whoever judges, for rows of two lengths."""
    for size in ("32x24", "16x40"):
        pipe = loaded("emu3").sized(size)
        prompts = [
            replace(prompt, seed=seed)
            for seed, prompt in enumerate(pipe.prompts_to_ids(CAPTIONS[:2], sampling=pipe.sampling(temperature=1.5)))
        ]
        drawn, _ = run(pipe.method(pipe.checked(method), guided=True), prompts)
        for ids in drawn:
            check_rows(pipe, ids, pipe.grid[1])


@pytest.mark.parametrize("width", [1, 2])
def test_rows_of_wrong_drafts_have_the_right_length(loaded: Loaded, width: int) -> None:
    pipe = loaded("emu3").sized("32x24")
    prompts, method = pipe.prompts_to_ids(CAPTIONS), pipe.method(parse("ar"), guided=True)
    plain, _ = run(method, prompts)
    wrong = OracleDrafter(dict(enumerate(plain)), pipe.family.size, reach=6, width=width, acceptance=0.3)
    drawn, _ = run(replace(method, drafter=wrong), prompts)
    for one, other in zip(drawn, plain, strict=True):
        check_rows(pipe, one, WIDE)
        assert one.equal(other)


def test_ends_of_rows_cost_no_pass(loaded: Loaded) -> None:
    pipe = loaded("emu3").sized("32x24")
    result = pipe(CAPTIONS, method="ar")
    assert [row.target_passes for row in result.row_stats] == [HIGH * WIDE] * 3
    assert result.stats.tokens == 3 * pipe.budget == 3 * (HIGH * (WIDE + 1) - 1)
    assert result.passes[0].tolist() == list(range(1, HIGH * WIDE + 1))


def test_a_grammar_that_is_not_told_would_pay_for_ends_of_rows(loaded: Loaded) -> None:
    """The same tokens, a pass more for every row."""
    pipe = loaded("emu3").sized("32x24")
    method, prompts = pipe.method(parse("ar"), guided=True), pipe.prompts_to_ids(CAPTIONS)
    told, _ = run(method, prompts)
    untold, each = run(replace(method, sampler=replace(method.sampler, forced=0)), prompts)
    assert each == 1 and all(one.equal(other) for one, other in zip(told, untold, strict=True))


def test_prompts_are_the_makers(loaded: Loaded) -> None:
    pipe = loaded("emu3").sized("32x24")
    (prompt,) = pipe.prompts_to_ids(["a red cat"])
    words = pipe.family.text.tokenizer.convert_tokens_to_ids
    told = words(["<|image start|>", "3", "*", "4", "<|image token|>"])
    assert all(list(branch[-5:]) == told for branch in prompt.branches)
    assert len({len(branch) for branch in prompt.branches}) == 2, "branches have lengths of their own"
    assert (prompt.sampling.guidance_scale, prompt.sampling.top_k) == (3, 2048)
    one, other = (pipe("a red cat", negative_prompt=text).tokens for text in (None, "night"))
    assert not one.equal(other) and pipe("a red cat", negative_prompt=BLAME).tokens.equal(one)
    assert loaded("emu3").sized("16x40").prompts_to_ids(["a"])[0].budget == 5 * 3 - 1


def test_what_does_not_fit_is_one_sentence(
    folder_of: Callable[[str], Path], loaded: Loaded, tmp_path: Path
) -> None:
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
