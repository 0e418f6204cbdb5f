"""Images of latents through the public interface, on a small random model: the same latents, drafted or not."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

import polydraft
from polydraft.apps.train import drafter
from polydraft.core.methods.continuous import LATENTS
from polydraft.core.methods.spec import CODEBOOK
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.image.latent.pipeline import LatentImagePipeline
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card

from ...covering import every_pair
from ...decoding import all_equal, run
from .captions import CAPTIONS
from .latent_folder import write

TOKENS = 16


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("latents") / "model"))


@lru_cache
def loaded(folder: str, dtype: str) -> LatentImagePipeline:
    return load(folder, dtype=dtype)


def prompts(pipe: LatentImagePipeline, sampling: SamplingParams, rows: int, budget: int = TOKENS) -> list[PromptInputs]:
    return [replace(prompt, max_new_tokens=budget) for prompt in pipe.build_prompts(CAPTIONS[:rows], sampling=sampling)]


@pytest.mark.parametrize(
    ("dtype", "temperature", "guidance"), every_pair(("float32", "bfloat16"), (0.7, 1.0), (1.0, 2.0))
)
def test_every_method_draws_what_plain_decoding_draws(
    folder: str, dtype: str, temperature: float, guidance: float
) -> None:
    pipe = loaded(folder, dtype)
    sampling, guided = SamplingParams(temperature=temperature, guidance_scale=guidance), guidance != 1
    for rows in (1, 5):
        asked = prompts(pipe, sampling, rows)
        plain, _ = run(pipe.method(LATENTS.parse("ar"), guided), asked)
        alone, _ = run(pipe.method(LATENTS.parse("ar"), guided), asked[-1:])
        assert all_equal(alone, plain[-1:]), "a row must not depend on its neighbours"
        taken = {}
        for name in ("jacobi(window=3)", "jacobi(window=12)", "draft(depth=2)", "eagle", "early-exit(depth=3)"):
            drawn, taken[name] = run(pipe.method(LATENTS.parse(name), guided), asked)
            assert all_equal(drawn, plain), name
        assert taken["jacobi(window=12)"] > 1.5 and taken["early-exit(depth=3)"] > 1.5


def test_complete_image_has_expected_result_fields(folder: str, tmp_path: Path) -> None:
    pipe = loaded(folder, "bfloat16")
    plain = pipe(CAPTIONS[:2], speculative=False, seed=3)
    seen = []
    drawn = pipe(CAPTIONS[:2], seed=3, on_step=seen.append)
    assert drawn.tokens.shape == (2, 256, 3) and drawn.tokens.dtype == torch.float32
    assert drawn.tokens.equal(plain.tokens) and drawn.stats.guarantee == "identical"
    assert drawn.stats.mean_accepted_length > 1.5 and drawn.finish_reason == "length"
    assert drawn.passes.max() == max(row.target_passes for row in drawn.row_stats) < 256
    assert seen[-1].tokens_done == seen[-1].tokens_total == 512
    assert drawn.image.size == (128, 128) and drawn.save(tmp_path / "x.png").is_file()
    assert not pipe(CAPTIONS[:2], seed=4).tokens.equal(plain.tokens)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_pixels_match_single_image_pixels(folder: str, dtype: str) -> None:
    pipe = loaded(folder, dtype)
    torch.manual_seed(1)
    latents = torch.randn(4, pipe.image_tokens, pipe.latent_dim)
    alone = [pipe.decode_images(latents[row : row + 1])[0].tobytes() for row in range(4)]
    assert [picture.tobytes() for picture in pipe.decode_images(latents)] == alone
    assert [picture.tobytes() for picture in pipe.decode_images(latents[1:3])] == alone[1:3]


def test_coupled_method_samples_the_same_distribution(folder: str) -> None:
    pipe = loaded(folder, "float32")
    drawn = pipe(CAPTIONS[0], method="early-exit(depth=3)+coupled")
    assert drawn.stats.guarantee == "exact" and drawn.stats.mean_accepted_length > 1.5
    assert drawn.tokens.isfinite().all() and not drawn.tokens.equal(pipe(CAPTIONS[0]).tokens)
    assert drawn.tokens.equal(pipe(CAPTIONS[0], method="early-exit(depth=3)+coupled").tokens)


def test_published_continuous_decoding_is_lossy(folder: str) -> None:
    drawn = loaded(folder, "float32")(CAPTIONS[0], method="early-exit(depth=3)+cspd(prefill=4)")
    assert drawn.stats.guarantee == "lossy" and drawn.stats.mean_accepted_length > 1.2
    assert drawn.passes[0, :5].tolist() == [1, 2, 3, 4, 5] and drawn.tokens.isfinite().all()


def test_cancelled_image_is_nan_where_missing(folder: str) -> None:
    stream = loaded(folder, "float32").stream(CAPTIONS[0])
    next(stream), next(stream)
    stream.close()
    result = stream.result()
    missing = result.tokens.isnan().any(-1)
    assert result.finish_reason == "cancelled" and missing.any() and not missing[0, 0]
    assert missing.equal(result.passes == 0)


def test_the_model_says_what_it_can(folder: str) -> None:
    assert load_card(folder).methods == ["ar", "jacobi", "draft", "eagle", "early-exit", "auto", "coupled", "cspd"]
    assert CODEBOOK not in load_card(folder).capabilities


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"method": "lantern"}, polydraft.UnsupportedMethod, "use one of ar, jacobi, draft, eagle"),
    ({"method": "eagle2"}, polydraft.UnsupportedMethod, "is for ids and model generates latents"),
    ({"method": "eagle+sps"}, polydraft.UnsupportedMethod, "is for ids and model generates latents"),
    ({"method": "jacobi+coupled"}, polydraft.UnsupportedMethod, "'jacobi' without a rule, or 'coupled' with one of"),
    ({"method": "jacobi(init=left)"}, polydraft.UnknownMethod, "its parameters are window"),
    ({"method": "warp"}, polydraft.UnknownMethod, "is unknown"),
    ({"temperature": 0.0}, polydraft.InvalidArgument, "temperature above 0"),
    ({"top_k": 4}, polydraft.InvalidArgument, "top_k chooses among ids"),
    ({"top_p": 0.9}, polydraft.InvalidArgument, "top_p chooses among ids"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_what_latents_cannot_do_is_one_sentence(
    folder: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message.replace("(", r"\(")) as caught:
        loaded(folder, "float32")(CAPTIONS[0], **options)
    assert "\n" not in str(caught.value)


def test_latent_method_is_refused_by_code_model() -> None:
    with pytest.raises(polydraft.UnsupportedMethod, match="is for latents and tiny-image generates ids"):
        load("tiny-image", method="coupled")


def test_drafters_of_latents_are_trained_with_their_model(folder: str, tmp_path: Path) -> None:
    with pytest.raises(polydraft.UnsupportedMethod, match="polydraft train tiny-latent"):
        drafter.run(folder, "eagle", tmp_path / "out", 1.0)
    assert not (tmp_path / "out").exists()


def test_a_drafter_that_is_not_there_is_named(folder: str, tmp_path: Path) -> None:
    bare = write(tmp_path / "bare")
    manifest = bare / "polydraft.json"
    manifest.write_text(manifest.read_text().replace('"eagle": "drafter-eagle", ', ""))
    with pytest.raises(polydraft.UnsupportedMethod, match="needs a .* of kind 'eagle' and bare has none; give one"):
        load(str(bare), method="eagle")
