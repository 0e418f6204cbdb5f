"""Families whose rows end with an id of their own: all rows have the same length, and ends cost no pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.methods.registry import parse
from polydraft.modalities.image.families.rows import RowDelimiterFamily
from polydraft.modalities.image.pipeline import ImagePipeline

from ....covering import every_pair
from ....decoding import run
from .conftest import Loaded

ROWED = {"emu3": ("32x24", "16x40"), "lumina-mgpt": ("12x8", "4x16")}  # what each generates, two widths of rows
CAPTIONS = ["a red cat", "owls reading late at night", "a"]
METHODS = (
    "ar", "pld", "jacobi(window=1)", "jacobi(window=7)", "jacobi(window=6,init=above)", "sjd(window=6)",
    "sjd-maximal(window=6)", "early-exit(layers=2,depth=4)", "early-exit(layers=2,depth=2,width=3)+target-only",
    "jacobi+lantern(k=5,delta=0.9)", "jacobi+lantern++(k=5)", "jacobi+gsd", "jacobi+typical", "jacobi+top-k(k=9)",
    "jacobi+tolerance", "jacobi+pcg", "sjd+lantern-ratio(k=5,delta=0.9)", "sjd+typical-ratio", "sjd+ssd", "sjd+cool-sd",
    "sjd-maximal+lenience", "pld+top-k-ratio", "early-exit(layers=2)+recursive", "early-exit(layers=2)+block",
)  # fmt: skip


def check_rows(pipe: ImagePipeline, ids: torch.Tensor) -> None:
    ends = (torch.arange(len(ids)) + 1) % (pipe.grid[1] + 1) == 0
    assert len(ids) == pipe.num_new_tokens == pipe.grid[0] * (pipe.grid[1] + 1) - 1
    assert ((ids == pipe.family.vocab_size - 1) == ends).all()


@pytest.mark.parametrize(("family", "method"), every_pair(ROWED, METHODS))
def test_no_drawn_row_has_a_wrong_length(loaded: Loaded, family: str, method: str) -> None:
    """Whatever drafts and whoever judges, for rows of two lengths."""
    for size in ROWED[family]:
        pipe = loaded(family).with_size(size)
        sampling = pipe.sampling_params(temperature=1.5)
        prompts = pipe.build_prompts(CAPTIONS[:2], sampling=sampling)
        drawn, _ = run(pipe.method(pipe.check_method(method), guided=True), prompts)
        for ids in drawn:
            check_rows(pipe, ids)


@pytest.mark.parametrize("family", ROWED)
@pytest.mark.parametrize("width", [1, 2])
def test_rows_of_wrong_drafts_have_the_right_length(loaded: Loaded, family: str, width: int) -> None:
    pipe = loaded(family).with_size(ROWED[family][0])
    prompts, method = pipe.build_prompts(CAPTIONS), pipe.method(parse("ar"), guided=True)
    plain, _ = run(method, prompts)
    wrong = OracleDrafter(dict(enumerate(plain)), pipe.family.vocab_size, reach=6, width=width, acceptance=0.3)
    drawn, _ = run(replace(method, drafter=wrong), prompts)
    for one, other in zip(drawn, plain, strict=True):
        check_rows(pipe, one)
        assert one.equal(other)


@pytest.mark.parametrize("family", ROWED)
def test_ends_of_rows_cost_no_pass(loaded: Loaded, family: str) -> None:
    pipe = loaded(family).with_size(ROWED[family][0])
    result = pipe(CAPTIONS, method="ar")
    assert [row.target_passes for row in result.row_stats] == [pipe.image_tokens] * 3
    assert result.stats.tokens == 3 * pipe.num_new_tokens and isinstance(pipe.family, RowDelimiterFamily)
    assert result.passes[0].tolist() == list(range(1, pipe.image_tokens + 1))


@pytest.mark.parametrize("family", ROWED)
def test_undeclared_forced_tokens_cost_one_pass_per_row(loaded: Loaded, family: str) -> None:
    """Tokens are the same, with one more pass per row."""
    pipe = loaded(family).with_size(ROWED[family][0])
    method, prompts = pipe.method(parse("ar"), guided=True), pipe.build_prompts(CAPTIONS)
    declared, _ = run(method, prompts)
    undeclared, each = run(replace(method, sampler=replace(method.sampler, max_forced_run=0)), prompts)
    assert each == 1 and all(one.equal(other) for one, other in zip(declared, undeclared, strict=True))


@pytest.mark.parametrize("family", ROWED)
def test_wrong_row_grammar_is_detected(loaded: Loaded, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = loaded(family).with_size(ROWED[family][0])
    pipe = pipe.with_family(pipe.family.with_grid(pipe.grid))
    monkeypatch.setattr(
        pipe.family, "grammar_state", lambda history: ((history.positions + 2) % pipe.row_length == 0).long()
    )
    drawn, _ = run(pipe.method(parse("ar"), guided=True), pipe.build_prompts(CAPTIONS[:1]))
    with pytest.raises(AssertionError):
        check_rows(pipe, drawn[0])
