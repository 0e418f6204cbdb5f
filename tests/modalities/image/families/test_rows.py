"""Families whose rows end with an id of their own: no row has another length, and ends cost no pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.methods.registry import parse
from polydraft.modalities.image.families.rows import EndedRows
from polydraft.modalities.image.pipeline import ImagePipeline

from ....covering import every_pair
from ....decoding import run
from .conftest import Loaded

ROWED = {"emu3": ("32x24", "16x40"), "lumina-mgpt": ("12x8", "4x16")}  # what each draws, two widths of rows
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
    assert len(ids) == pipe.budget == pipe.grid[0] * (pipe.grid[1] + 1) - 1
    assert ((ids == pipe.family.size - 1) == ends).all()


@pytest.mark.parametrize(("family", "method"), every_pair(ROWED, METHODS))
def test_no_drawn_row_has_a_wrong_length(loaded: Loaded, family: str, method: str) -> None:
    """Whatever drafts and whoever judges, for rows of two lengths."""
    for size in ROWED[family]:
        pipe = loaded(family).sized(size)
        sampling = pipe.sampling(temperature=1.5)
        prompts = pipe.prompts_to_ids(CAPTIONS[:2], sampling=sampling)
        drawn, _ = run(pipe.method(pipe.checked(method), guided=True), prompts)
        for ids in drawn:
            check_rows(pipe, ids)


@pytest.mark.parametrize("family", ROWED)
@pytest.mark.parametrize("width", [1, 2])
def test_rows_of_wrong_drafts_have_the_right_length(loaded: Loaded, family: str, width: int) -> None:
    pipe = loaded(family).sized(ROWED[family][0])
    prompts, method = pipe.prompts_to_ids(CAPTIONS), pipe.method(parse("ar"), guided=True)
    plain, _ = run(method, prompts)
    wrong = OracleDrafter(dict(enumerate(plain)), pipe.family.size, reach=6, width=width, acceptance=0.3)
    drawn, _ = run(replace(method, drafter=wrong), prompts)
    for one, other in zip(drawn, plain, strict=True):
        check_rows(pipe, one)
        assert one.equal(other)


@pytest.mark.parametrize("family", ROWED)
def test_ends_of_rows_cost_no_pass(loaded: Loaded, family: str) -> None:
    pipe = loaded(family).sized(ROWED[family][0])
    result = pipe(CAPTIONS, method="ar")
    assert [row.target_passes for row in result.row_stats] == [pipe.image_tokens] * 3
    assert result.stats.tokens == 3 * pipe.budget and isinstance(pipe.family, EndedRows)
    assert result.passes[0].tolist() == list(range(1, pipe.image_tokens + 1))


@pytest.mark.parametrize("family", ROWED)
def test_a_grammar_that_is_not_told_would_pay_for_ends_of_rows(loaded: Loaded, family: str) -> None:
    """The same tokens, a pass more for every row."""
    pipe = loaded(family).sized(ROWED[family][0])
    method, prompts = pipe.method(parse("ar"), guided=True), pipe.prompts_to_ids(CAPTIONS)
    told, _ = run(method, prompts)
    untold, each = run(replace(method, sampler=replace(method.sampler, forced=0)), prompts)
    assert each == 1 and all(one.equal(other) for one, other in zip(told, untold, strict=True))


@pytest.mark.parametrize("family", ROWED)
def test_a_grammar_that_counts_a_row_wrong_is_noticed(
    loaded: Loaded, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = loaded(family).sized(ROWED[family][0])
    pipe = pipe.of(pipe.family.at(pipe.grid))
    monkeypatch.setattr(pipe.family, "slot", lambda history: ((history.t + 2) % pipe.row == 0).long())
    drawn, _ = run(pipe.method(parse("ar"), guided=True), pipe.prompts_to_ids(CAPTIONS[:1]))
    with pytest.raises(AssertionError):
        check_rows(pipe, drawn[0])
