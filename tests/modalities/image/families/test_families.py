"""Properties of all families of codes: the same image drafted or not, alone or in a batch, and its files and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polydraft
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.methods.registry import parse
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.image.catalogue import CODE_FAMILIES, PUBLISHED
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.image.request import ImageRequestInfo
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card

from ....covering import every_pair, first, shares
from ....decoding import all_equal, run
from .conftest import Loaded
from .folders import FOLDERS

CAPTIONS = ["a red cat", "owls reading late at night", "a"]
LABELS = {"llamagen_c2i": ["7", "3", "88"]}  # of families that draw classes
IDENTICAL = ("jacobi(window=5)", "jacobi(window=9,init=above)", "pld", "early-exit(layers=2,depth=3)")


def build_requests(pipe: ImagePipeline, sampling: SamplingParams, rows: int) -> tuple[list[PromptInputs], bool]:
    guided = sampling.guidance_scale != 1
    return pipe.build_prompts(captions(pipe)[:rows], sampling=sampling), guided


def captions(pipe: ImagePipeline) -> list[str]:
    return LABELS.get(pipe.card.manifest["family"], CAPTIONS)


def scale(pipe: ImagePipeline, guided: bool) -> float:
    return 2.5 if guided and pipe.family.num_branches > 1 else 1.0


def usable(pipe: ImagePipeline, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.partition("(")[0] in pipe.available_methods()]


@pytest.mark.parametrize(
    ("family", "dtype", "temperature", "guided"),
    every_pair(FOLDERS, ("float32", "bfloat16"), (0.0, 1.0), (False, True)),
)
def test_every_identical_method_draws_what_plain_decoding_draws(
    loaded: Loaded, family: str, dtype: str, temperature: float, guided: bool
) -> None:
    pipe = loaded(family, dtype)
    sampling = SamplingParams(temperature=temperature, guidance_scale=scale(pipe, guided))
    prompts, two = build_requests(pipe, sampling, 3)
    method = pipe.method(parse("ar"), two)
    plain, _ = run(method, prompts)
    alone, _ = run(method, prompts[1:2])
    assert all_equal(alone, plain[1:2]), "a row must not depend on its neighbours"
    for name in usable(pipe, IDENTICAL):
        drawn, _ = run(pipe.method(parse(name), two), prompts)
        assert all_equal(drawn, plain), name
    for width in (1, 3):
        oracle = OracleDrafter(dict(enumerate(plain)), pipe.family.vocab_size, reach=4, width=width, acceptance=0.8)
        drawn, committed = run(replace(method, drafter=oracle), prompts)
        assert committed > 1.5 and all_equal(drawn, plain), f"oracle of width {width}"


@pytest.mark.parametrize(("family", "thirds"), shares(range(3), FOLDERS))
def test_every_method_of_the_core_draws_whole_pictures(loaded: Loaded, family: str, thirds: list[int]) -> None:
    pipe = loaded(family)
    settings: dict[str, Any] = {"seed": 5}
    guarantees = set()
    names = [*pipe.available_methods(), "jacobi+lantern(k=3,delta=0.4)", "sjd+lantern-ratio(k=3)", "jacobi+top-k(k=4)"]
    smaller = {"lantern": "lantern(k=5)", "lantern++": "lantern++(k=5)"}
    names = [smaller.get(name, name) for name in names if name not in ("lantern-ratio", "lantern++-ratio")]
    for name in (name for third in thirds for name in names[third::3]):
        drawn = pipe(captions(pipe)[:2], method=name, **settings)
        guarantees.add(drawn.stats.guarantee)
        assert (drawn.tokens >= 0).all() and (drawn.tokens < len(pipe.family.codebook_embeddings)).all(), name
        assert (drawn.passes > 0).all() and drawn.finish_reasons == ["length"] * 2, name
    assert {"lossy"} < guarantees


@pytest.mark.parametrize("family", FOLDERS)
def test_several_rows_at_once_make_whole_pictures(loaded: Loaded, family: str) -> None:
    """Every row equals plain decoding's."""
    pipe = loaded(family)
    prompts, two = build_requests(pipe, SamplingParams(guidance_scale=scale(pipe, True)), 2)
    plain, _ = run(pipe.method(parse("ar"), two), prompts)
    whole, _ = run(pipe.method(parse("pjd(lead=1024)"), two), prompts)
    assert all_equal(whole, plain)
    some, committed = run(pipe.method(parse("pjd(lead=1,window=2)"), two), prompts)
    assert [len(row) for row in some] == [len(row) for row in plain] and committed > 1


@pytest.mark.parametrize("family", FOLDERS)
def test_images_have_requested_size_and_depend_on_codes(loaded: Loaded, family: str, tmp_path: Path) -> None:
    pipe = loaded(family)
    shown = []
    run_ = pipe.run(captions(pipe)[:2], seed=3, partial_images=1)
    scheduler = polydraft.modalities.request.BatchScheduler(run_.method)
    scheduler.add_prompts(run_, run_.schedulable_prompts(2))
    while not run_.is_finished:
        scheduler.step()
        shown += [picture.size for news in run_.poll_events() for picture in news.images]
    result = run_.result()
    wide, high = map(int, pipe.dimensions.split("x"))
    assert shown == [(wide, high)] * 2 == [picture.size for picture in result.images]
    assert result.tokens.equal(pipe(captions(pipe)[:2], seed=3, speculative=False).tokens)
    assert (
        result.stats.tokens == 2 * pipe.num_new_tokens
        and run_.tokens_done == run_.tokens_total == 2 * pipe.image_tokens
    )
    one, two = (np.asarray(picture) for picture in result.images)
    assert (one != two).any()
    assert result.save(tmp_path / "x.png").is_file()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", first(2, FOLDERS))
def test_batch_pixels_match_single_image_pixels(loaded: Loaded, family: str, dtype: str) -> None:
    pipe = loaded(family, dtype)
    torch.manual_seed(1)
    codes = torch.randint(0, len(pipe.family.codebook_embeddings), (5, pipe.image_tokens))
    asked_for = [ImageRequestInfo(captions(pipe)[row % 3], row) for row in range(5)]
    alone = [pipe.decode_images(codes[row : row + 1], asked_for[row : row + 1])[0].tobytes() for row in range(5)]
    for order in ([0, 1, 2, 3, 4], [3, 1]):
        drawn = pipe.decode_images(codes[order], [asked_for[row] for row in order])
        assert [picture.tobytes() for picture in drawn] == [alone[row] for row in order]


@pytest.mark.parametrize("family", first(1, FOLDERS))
def test_image_bytes_are_independent_of_batch_neighbours(loaded: Loaded, family: str) -> None:
    pipe = loaded(family)
    settings: list[dict[str, Any]] = [
        {"seed": 5, "temperature": temperature, "guidance_scale": scale(pipe, True) + more, "method": "ar"}
        for temperature, more in ((1.0, 0), (0.0, 0), (0.7, 1.5 if pipe.family.num_branches > 1 else 0))
    ]
    texts = captions(pipe)
    runs = [pipe.run(text, **setting) for text, setting in zip(texts, settings, strict=True)]
    scheduler = polydraft.modalities.request.BatchScheduler(runs[0].method)
    for run_ in runs:
        scheduler.add_prompts(run_, run_.schedulable_prompts(1))
    while scheduler.num_live:
        scheduler.step()
    for text, setting, run_ in zip(texts, settings, runs, strict=True):
        alone, batched = pipe(text, **setting), run_.result()
        assert batched.tokens.equal(alone.tokens) and batched.image.tobytes() == alone.image.tobytes()


@pytest.mark.parametrize("family", FOLDERS)
def test_distributions_cover_image_codes_only(loaded: Loaded, family: str) -> None:
    pipe = loaded(family)
    vectors = pipe.family.codebook_embeddings
    assert pipe.token_mask.shape[1] == pipe.family.vocab_size == pipe.target().vocab_size and len(pipe.token_mask) <= 4
    found = pipe.codebook[pipe.family.first_code_id : pipe.family.first_code_id + len(vectors)]
    assert found.equal(vectors.float()) and len(pipe.family.code_indices) == pipe.num_new_tokens
    assert sorted(pipe.family.code_indices[pipe.family.code_indices >= 0].tolist()) == list(range(pipe.image_tokens))


@pytest.mark.parametrize("family", FOLDERS)
def test_the_card_says_what_its_makers_say(folder_of: Callable[[str], Path], family: str) -> None:
    card = load_card(str(folder_of(family)))
    assert (card.modality, card.manifest["family"], card.is_latent) == ("image", family, False)
    assert card.licence == CODE_FAMILIES[family].licence and card.defaults["temperature"] > 0
    assert {"ar", "jacobi", "pld", "sjd", "lantern"} <= set(card.methods)


@pytest.mark.parametrize("family", FOLDERS)
def test_folder_without_config_is_refused_in_one_sentence(
    folder_of: Callable[[str], Path], family: str, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "model.safetensors").write_bytes(next(folder_of(family).rglob("model.safetensors")).read_bytes())
    with pytest.raises(polydraft.UnknownModel) as caught:
        load(str(bare), modality="image")
    assert str(caught.value).count("\n") == 0 and "bare" in str(caught.value)


@pytest.mark.parametrize("family", FOLDERS)
@pytest.mark.parametrize("size", ["17x16", "0x0", "big"])
def test_impossible_size_is_refused(loaded: Loaded, family: str, size: str) -> None:
    with pytest.raises(polydraft.InvalidArgument, match="size=.* is not possible; tiny-.* generates"):
        loaded(family).run("a cat", size=size)


@pytest.mark.parametrize("name", PUBLISHED)
def test_missing_checkpoint_error_names_size_and_licence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(*args: Any, **named: Any) -> str:
        raise OSError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(polydraft.UnknownModel, match=rf"{name}.* GB, licence: .*hf download {name}") as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_control_tokens_in_prompts_are_removed(loaded: Loaded) -> None:
    pipe = loaded("janus")
    sly = pipe.build_prompts(["a <begin_of_<eos>image> red cat<pad>"])
    assert sly[0].branch_token_ids == pipe.build_prompts(["a  red cat"])[0].branch_token_ids
    assert torch.equal(pipe("a <bos> red cat").tokens, pipe("a  red cat").tokens)
    assert pipe.run("a <begin_of_<eos>image> red cat<pad>").ignored == ("<eos>", "<pad>", "<begin_of_image>")
