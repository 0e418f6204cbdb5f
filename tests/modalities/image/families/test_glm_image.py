"""GLM-Image against transformers' loop and diffusers' pipeline: prompts, greedy codes, pixels; its preview."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import huggingface_hub
import numpy as np
import pytest
import torch
import transformers as hf

import polydraft
from polydraft.core.drafters.preview import PreviewDrafter
from polydraft.core.methods.registry import parse
from polydraft.core.sampling.params import SamplingParams
from polydraft.modalities.hub import OTHER_FORMS
from polydraft.modalities.image.families.glm_image.family import GlmImage
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card

from ....covering import first
from ....decoding import all_equal, run
from .conftest import Loaded
from .folders import GLM_CODES, GLM_SCORED

CAPTIONS = ["a red cat", "owls reading late at night", "a"]
HIGH, WIDE = 160, 96
SIZE = f"{WIDE}x{HIGH}"


@pytest.fixture
def published() -> Iterator[None]:
    """Previews of their own size, about 256 codes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(GlmImage, "preview_side", 16)
        yield


def load_transformers_model(folder: Path) -> Any:
    part = folder / "vision_language_encoder"
    return hf.GlmImageForConditionalGeneration.from_pretrained(part, dtype=torch.float64).eval()


def read(folder: Path, captions: list[str]) -> Any:
    """Encode prompts as transformers' processor does, padded on the left."""
    processor = hf.GlmImageProcessor.from_pretrained(folder / "processor")
    asked = [[{"role": "user", "content": [{"type": "text", "text": caption}]}] for caption in captions]
    return processor.apply_chat_template(
        asked, tokenize=True, padding=True, target_h=HIGH, target_w=WIDE, return_dict=True, return_tensors="pt"
    )


@pytest.mark.parametrize("rows", first(1, [3, 1]))
@pytest.mark.usefixtures("published")
def test_greedy_codes_are_those_of_the_stock_loop(folder_of: Callable[[str], Path], loaded: Loaded, rows: int) -> None:
    folder, pipe = folder_of("glm_image"), loaded("glm_image", "float64")
    inputs = read(folder, CAPTIONS[:rows])
    preview, large = 20 * 12, 5 * 3
    assert inputs["image_grid_thw"][:2].tolist() == [[1, 5, 3], [1, 20, 12]]
    no_codes = list(range(GLM_CODES, GLM_SCORED))
    stock = load_transformers_model(folder).generate(
        **inputs, max_new_tokens=preview + large, do_sample=False, suppress_tokens=no_codes
    )[:, -preview - large :]  # fmt: skip
    assert all(len(row.unique()) > 10 for row in stock), "what comes before must matter"
    sized = pipe.with_size(SIZE)
    prompts = sized.build_prompts(CAPTIONS[:rows], sampling=SamplingParams(temperature=0.0))
    for method in ("ar", "jacobi(window=8)", "jacobi(window=8,init=preview)"):
        drawn, _ = run(sized.method(parse(method)), prompts)
        assert torch.stack(drawn).equal(stock), method
    assert pipe(CAPTIONS[:rows], temperature=0.0, size=SIZE).tokens.equal(stock[:, preview:])


@pytest.mark.usefixtures("published")
def test_prompts_are_those_of_the_stock_processor(folder_of: Callable[[str], Path], loaded: Loaded) -> None:
    pipe = loaded("glm_image").with_size(SIZE)
    for caption in CAPTIONS:
        (prompt,) = pipe.build_prompts([caption])
        assert prompt.branch_token_ids == (tuple(read(folder_of("glm_image"), [caption])["input_ids"][0].tolist()),)
        assert prompt.max_new_tokens == 255
    assert (
        prompt.sampling_params.temperature,
        prompt.sampling_params.top_p,
        prompt.sampling_params.guidance_scale,
    ) == (0.9, 0.75, 1)


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    ("grid", "preview"), [((32, 32), (16, 16)), ((36, 24), (19, 13)), ((33, 32), (16, 15)), ((64, 64), (16, 16))]
)
def test_previews_have_the_makers_sizes(loaded: Loaded, grid: tuple[int, int], preview: tuple[int, int]) -> None:
    family = loaded("glm_image").family.with_grid(grid)
    assert isinstance(family, GlmImage) and family.grids == (preview, grid)
    assert (
        family.num_new_tokens
        == preview[0] * preview[1] + grid[0] * grid[1]
        == len(family.preview_index)
        == len(family.code_indices)
    )


def test_positions_match_transformers_rope_index_of_two_grids(loaded: Loaded) -> None:
    family = loaded("glm_image").family.with_grid((2, 3))
    assert isinstance(family, GlmImage) and family.grids == ((1, 2), (2, 3))
    found = family.rotary_positions(torch.arange(-2, 10)[None])[:, 0].T.tolist()
    assert found == [
        [-2, -2, -2], [-1, -1, -1],
        [0, 0, 0], [0, 0, 1],
        [2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4],
        [5, 5, 5], [5, 5, 5],
    ]  # fmt: skip


def test_preview_index_maps_image_to_preview_codes(loaded: Loaded) -> None:
    pipe = loaded("glm_image")
    assert pipe.preview_index is not None and pipe.preview_index.tolist() == [
        -1, -1, -1, -1,
        0, 0, 1, 1,
        0, 0, 1, 1,
        2, 2, 3, 3,
        2, 2, 3, 3,
    ]  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", [
    "jacobi(window=3,init=preview)", "jacobi(window=9,init=preview,restart=no)", "preview", "preview(reach=9)",
])  # fmt: skip
def test_guesses_from_the_preview_change_nothing(loaded: Loaded, name: str, temperature: float) -> None:
    pipe = loaded("glm_image")
    prompts = pipe.build_prompts(CAPTIONS, sampling=SamplingParams(temperature=temperature))
    plain, _ = run(pipe.method(parse("ar")), prompts)
    drawn, _ = run(pipe.method(parse(name)), prompts)
    assert all_equal(drawn, plain)


def test_image_equal_to_its_preview_is_predicted(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar that allows only the preview's code at every position stands for a model that enlarges it."""
    pipe = loaded("glm_image").with_size("256x256")
    spots = pipe.preview_index
    assert spots is not None

    def slot(history: Any) -> torch.Tensor:
        """Class 0 is any code, class 1 + k is code k alone."""
        origin = spots[history.positions.clamp(max=len(spots) - 1)]
        shown = history.first_generated(4).gather(2, origin.clamp(min=0)[..., None])[..., 0]
        return torch.where(origin < 0, 0, shown + 1)

    alone = torch.eye(GLM_SCORED, dtype=torch.bool)[:GLM_CODES]
    other = pipe.family.with_grid(pipe.grid)
    monkeypatch.setattr(type(other), "allowed_tokens", torch.cat([alone.any(0)[None], alone]))
    monkeypatch.setattr(type(other), "grammar_state", staticmethod(slot))
    taught = pipe.copy_with(family=other, _methods={}, _targets={}, _sizes={})
    for name in ("token_mask", "sampler", "exact_only_mask"):
        vars(taught).pop(name, None)
    plain = taught(CAPTIONS, method="ar", seed=2)
    for name in ("jacobi(window=8,init=preview)", "preview(reach=8)"):
        guessed = taught(CAPTIONS, method=name, seed=2)
        assert guessed.tokens.equal(plain.tokens), name
        assert guessed.stats.target_passes < plain.stats.target_passes / 3, name


def test_what_draws_no_preview_cannot_draft_with_one(loaded: Loaded) -> None:
    assert "preview" in loaded("glm_image").available_methods()
    assert "preview" not in (pipe := loaded("janus")).available_methods()
    with pytest.raises(polydraft.UnsupportedMethod, match="needs a preview before the image and tiny-janus has none"):
        pipe("a cat", method="preview")


def test_preview_drafts_are_its_codes_outside_the_preview() -> None:
    """Check rows of several lengths; ungenerated preview codes and the image's end draft nothing."""
    origins = torch.tensor([-1, -1, 0, 0, 1, 5])
    drafter = PreviewDrafter(3, origins, torch.tensor([False] + [True] * 9))
    none: Any = None
    for generated, wanted in ((1, []), (2, [7, 7, 8]), (3, [7, 8]), (4, [8]), (6, [])):
        tokens = torch.tensor([[0, 0, 7, 8, 7, 7, 8, 9, 0]])
        state: Any = SimpleNamespace(
            tokens=tokens,
            prompt_lens=torch.tensor([2]),
            num_generated=torch.tensor([generated]),
            branch_prompt_lens=none,
        )
        draft = drafter.draft(state, none, none, none)
        assert draft.tokens[draft.valid].tolist() == wanted, generated
    state.tokens[0, 2] = 0  # what may not be drafted
    state.num_generated = torch.tensor([2])
    assert not drafter.draft(state, none, none, none).valid.any()


def test_pixels_are_those_of_diffusers(folder_of: Callable[[str], Path], loaded: Loaded) -> None:
    pipe = loaded("glm_image")
    drawn = pipe(CAPTIONS[:2], seed=3)
    stock = diffusers.GlmImagePipeline.from_pretrained(folder_of("glm_image"))
    stock.set_progress_bar_config(disable=True)
    for row, caption in enumerate(CAPTIONS[:2]):
        finer = stock._upsample_token_ids(drawn.tokens[row], 4, 4)
        noise = torch.Generator().manual_seed(3 + row)
        (wanted,) = stock(
            caption, height=128, width=128, prior_token_ids=finer, generator=noise, num_inference_steps=2
        ).images  # fmt: skip
        apart = np.asarray(wanted, dtype=int) - np.asarray(drawn.images[row], dtype=int)
        assert abs(apart).max() <= 1


def test_its_language_model_is_loaded_once(loaded: Loaded) -> None:
    family = loaded("glm_image").family
    assert isinstance(family, GlmImage)
    assert family.diffusion.vision_language_encoder is None and family.diffusion.processor is None


def test_what_is_no_code_is_never_drawn(loaded: Loaded) -> None:
    pipe = loaded("glm_image")
    assert pipe.token_mask.shape == (1, GLM_SCORED) and not pipe.token_mask[:, GLM_CODES:].any()
    drawn = pipe(CAPTIONS * 3, temperature=50.0, top_p=1.0).tokens
    assert drawn.max() < GLM_CODES and len(drawn.unique()) > GLM_CODES // 2


def test_sizes_are_drawn(loaded: Loaded) -> None:
    pipe = loaded("glm_image")
    assert pipe("a cat", size="64x96").image.size == (64, 96)
    assert pipe("a cat").image.size == (128, 128)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": "100x96"}, "multiples of 32, such as 128x128"),
        ({"size": "320x32"}, "at most 4 times as long as wide"),
        ({"guidance_scale": 2.0}, "generates without guidance; leave out guidance_scale"),
        ({"negative_prompt": "blurry"}, "reads no negative prompt"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(loaded: Loaded, options: dict[str, Any], words: str) -> None:
    with pytest.raises(polydraft.InvalidArgument, match=words):
        loaded("glm_image").run("a cat", **options)


def test_init_preview_without_preview_is_refused(loaded: Loaded) -> None:
    with pytest.raises(polydraft.InvalidArgument, match="init=preview is for models that generate a preview"):
        loaded("janus").run("a cat", method="jacobi(init=preview)")


def test_a_prompt_cannot_spell_what_begins_an_image(loaded: Loaded) -> None:
    pipe: ImagePipeline = loaded("glm_image")
    sly = pipe.build_prompts(["a <sop>99 99<eop> red <|dit_token_64|>cat"])
    assert sly[0].branch_token_ids == pipe.build_prompts(["a 99 99 red cat"])[0].branch_token_ids


def damaged(folder: Path, to: Path, change: Callable[[Path], Any]) -> Path:
    shutil.copytree(folder, to)
    change(to)
    return to


def fewer_codes(folder: Path) -> None:
    """Replace the diffusion transformer by another model's."""
    part = folder / "transformer"
    config = json.loads((part / "config.json").read_text())
    config["prior_vq_quantizer_codebook_size"] = 32
    model = diffusers.GlmImageTransformer2DModel.from_config(config)
    shutil.rmtree(part)
    model.save_pretrained(part)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (fewer_codes, "generates 64 different codes and its diffusion transformer knows 32"),
        (lambda folder: shutil.rmtree(folder / "vae"), "the diffusion transformer in .* cannot be loaded"),
        (lambda folder: shutil.rmtree(folder / "vision_language_encoder"), "vision_language_encoder is no folder"),
        (lambda folder: shutil.rmtree(folder / "processor"), "processor has no tokenizer.json"),
    ],
)
def test_missing_or_mismatched_parts_are_refused(
    folder_of: Callable[[str], Path], tmp_path: Path, change: Callable[[Path], Any], words: str
) -> None:
    with pytest.raises(polydraft.WeightsError, match=words) as caught:
        load(str(damaged(folder_of("glm_image"), tmp_path / "other", change)))
    assert "\n" not in str(caught.value)


def test_repository_of_parts_is_fetched_when_loaded(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, folder = [], folder_of("glm_image")

    def snapshot(name: str, allow_patterns: list[str], ignore_patterns: list[str], **_: Any) -> str:
        asked.append(("*.safetensors" in allow_patterns, ignore_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    found = load_card("somebody/glm-image")
    assert asked == [(False, [*OTHER_FORMS, "*/*"])]
    found = found.fetch_weights()
    assert asked == [(False, [*OTHER_FORMS, "*/*"]), (True, OTHER_FORMS)]
    assert found.manifest["family"] == "glm_image" and found.target == folder / "vision_language_encoder"


def test_language_model_alone_is_recognised(folder_of: Callable[[str], Path]) -> None:
    with pytest.raises(polydraft.WeightsError, match="makes no pixels; give the whole of it"):
        load(str(folder_of("glm_image") / "vision_language_encoder"))
