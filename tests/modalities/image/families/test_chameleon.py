"""Anole and Lumina-mGPT against loops over transformers' own Chameleon, and their VQGAN against diffusers' decoder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from diffusers.models.autoencoders.vae import Decoder
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import polydraft
from polydraft.core.errors import WeightsError
from polydraft.modalities.image.families.autoencoder import conv_to_linear, to_diffusers_name
from polydraft.modalities.image.families.chameleon import vq
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card

from ....apps import command_line
from .conftest import Loaded
from .folders import CHAMELEON_CODES, CHAMELEON_SIDE, VQ

CAPTIONS = ["a red cat", "owls reading late at night", "a"]
BOS, FIRST = 0, 4
EOI, BOI, TURN, _, END_OF_ROW = range(FIRST + CHAMELEON_CODES, FIRST + CHAMELEON_CODES + 5)
CPU, FILE = torch.device("cpu"), "model.safetensors"
Stock = Callable[[list[list[int]], list[float], list[int | None]], list[int]]


@pytest.fixture(scope="module")
def stock(folder_of: Callable[[str], Path]) -> Stock:
    """Return a loop over transformers' Chameleon with codes masked behind the head; every id anew, in float64."""
    model: Any = hf.ChameleonForConditionalGeneration.from_pretrained(folder_of("anole"), dtype=torch.float64).eval()

    @torch.no_grad()
    def generate_greedily(branches: list[list[int]], scales: list[float], forced: list[int | None]) -> list[int]:
        """scales: of each branch to the next; forced: what alone may stand at a place, None for a code."""
        generated: list[int] = []
        for alone in forced:
            hidden = [model.model(torch.tensor([[*ids, *generated]])).last_hidden_state[0, -1] for ids in branches]
            logits = [model.lm_head(last) for last in hidden]
            whole = logits[-1].clone()
            for one, other, scale in zip(logits, logits[1:], scales, strict=False):
                whole += scale * (one - other)
            codes = whole[FIRST : FIRST + CHAMELEON_CODES]
            generated.append(FIRST + int(codes.argmax()) if alone is None else alone)
        return generated

    return generate_greedily


def ids_of(folder: Path, text: str) -> list[int]:
    words = hf.PreTrainedTokenizerFast.from_pretrained(folder)
    return words(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_anole_greedy_codes_match_transformers_loop(
    folder_of: Callable[[str], Path], loaded: Loaded, stock: Stock, rows: int, guidance: float
) -> None:
    pipe = loaded("anole", "float64")
    generate_greedily = pipe(
        CAPTIONS[:rows], temperature=0.0, guidance_scale=guidance, method="jacobi(window=6)"
    ).tokens
    for row, caption in zip(generate_greedily, CAPTIONS, strict=False):
        prompt_ids = [BOS, *ids_of(folder_of("anole"), caption), TURN, BOI]
        branches = [prompt_ids] if guidance == 1 else [prompt_ids, [BOS, BOI]]
        assert (row + FIRST).tolist() == stock(branches, [guidance], [None] * CHAMELEON_SIDE**2)
    assert rows == 1 or len(generate_greedily.unique()) > 4, "what comes before must matter"


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_lumina_greedy_codes_match_transformers_loop(
    folder_of: Callable[[str], Path], loaded: Loaded, stock: Stock, rows: int, guidance: float
) -> None:
    """Guidance begins behind the sizes, over a context that begins at the image."""
    pipe, (high, wide) = loaded("lumina-mgpt", "float64"), (4, 6)
    generate_greedily = pipe(
        CAPTIONS[:rows], temperature=0.0, guidance_scale=guidance, method="jacobi(window=6)"
    ).tokens
    header = [BOI, END_OF_ROW + 1 + high // 2, END_OF_ROW + 1 + wide // 2]
    forced = [END_OF_ROW if (place + 1) % (wide + 1) == 0 else None for place in range(high * (wide + 1))]
    for row, caption in zip(generate_greedily, CAPTIONS, strict=False):
        asked = f"Generate an image of 12x8 according to the following prompt:\n{caption}"
        prompt_ids = [BOS, *ids_of(folder_of("lumina-mgpt"), asked), TURN, *header]
        branches = [prompt_ids] if guidance == 1 else [prompt_ids, header]
        generated = torch.tensor(stock(branches, [guidance], forced)).view(high, wide + 1)
        assert (row + FIRST).equal(generated[:, :-1].flatten())
    assert rows == 1 or len(generate_greedily.unique()) > 4


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (11, 17, 3), dtype=np.uint8))


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_anole_with_init_image_has_three_branches(
    folder_of: Callable[[str], Path], loaded: Loaded, stock: Stock, guidance: float
) -> None:
    pipe = loaded("anole", "float64")
    family = pipe.family.with_init_image(picture())
    generated = {"temperature": 0.0, "guidance_scale": guidance, "method": "jacobi(window=6)"}
    generate_greedily = pipe(CAPTIONS[:2], prime=picture(), **generated).tokens
    shown = [BOI, *(FIRST + code for code in family.shown_codes), EOI]  # type: ignore[attr-defined]
    assert len(shown) == CHAMELEON_SIDE**2 + 2 and family.num_branches == 3
    for row, caption in zip(generate_greedily, CAPTIONS, strict=False):
        prompt_ids = [BOS, *shown, *ids_of(folder_of("anole"), caption), TURN, BOI]
        branches = [prompt_ids] if guidance == 1 else [prompt_ids, [BOS, *shown, BOI], [BOS, BOI]]
        assert (row + FIRST).tolist() == stock(branches, [guidance, 1.2], [None] * CHAMELEON_SIDE**2)
    again = pipe(CAPTIONS[:2], seed=3, method="ar", prime=picture())
    assert again.tokens.equal(pipe(CAPTIONS[:2], seed=3, prime=picture()).tokens)
    assert not again.tokens.equal(pipe(CAPTIONS[:2], seed=3).tokens), "what was shown must matter"


def test_nothing_is_shown_to_what_cannot_see(folder_of: Callable[[str], Path], loaded: Loaded) -> None:
    pipe = loaded("anole")
    blind: Any = pipe.family.with_grid(pipe.grid)
    blind.vq = vq.load(folder_of("anole"), CPU, torch.float32)
    with pytest.raises(WeightsError, match="the VQGAN of tiny-anole has no encoder"):
        pipe.with_family(blind).run("a cat", prime=picture())
    with pytest.raises(polydraft.InvalidArgument, match="tiny-lumina-mgpt begins every image anew"):
        loaded("lumina-mgpt").run("a cat", prime=picture())


def test_vqgan_codes_match_transformers_encoder(folder_of: Callable[[str], Path], loaded: Loaded) -> None:
    model: Any = hf.ChameleonForConditionalGeneration.from_pretrained(folder_of("anole"), dtype=torch.float64).eval()
    pixels = torch.rand(2, 3, 8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.no_grad():
        wanted = model.model.vqmodel.encode(pixels).image_tokens.view(2, 4, 6)
    found = vq.encode_images(loaded("anole", "float64").family.vq, pixels)  # type: ignore[attr-defined]
    assert found.equal(wanted) and len(found.unique()) > 3


@pytest.mark.parametrize(("family", "size"), [("anole", None), ("lumina-mgpt", "12x8")])
def test_pixels_are_those_of_diffusers_decoder(
    folder_of: Callable[[str], Path], loaded: Loaded, family: str, size: str | None
) -> None:
    pipe, folder = loaded(family, "float64").with_size(size), folder_of(family)
    file = next(path for path in (folder / "vqvae" / FILE, folder / FILE) if path.exists())
    weights = {name.removeprefix("model.vqmodel."): of.double() for name, of in load_file(file).items()}
    widths = [VQ["base_channels"] * times for times in VQ["channel_multiplier"]]
    decoder = Decoder(
        VQ["latent_channels"], 3, ("UpDecoderBlock2D",) * len(widths), tuple(widths), VQ["num_res_blocks"]
    ).double()
    names = [name for name in weights if name.startswith("decoder.")]
    decoder.load_state_dict(
        {
            to_diffusers_name(name, len(widths)).removeprefix("decoder."): conv_to_linear(name, weights[name])
            for name in names
        }
    )
    generate_greedily = pipe("a red cat", seed=3)
    with torch.no_grad():
        vectors = weights["quantize.embedding.weight"][generate_greedily.tokens.view(1, *pipe.grid)].permute(0, 3, 1, 2)
        post = torch.nn.functional.conv2d(vectors, *(weights[f"post_quant_conv.{part}"] for part in ("weight", "bias")))
        wanted = decoder(post)[0]
    wide, high = generate_greedily.image.size
    found = torch.frombuffer(bytearray(generate_greedily.image.tobytes()), dtype=torch.uint8).view(high, wide, 3)
    assert (high, wide) == wanted.shape[1:]
    assert (found - ((wanted.clamp(-1, 1) + 1) * 127.5).permute(1, 2, 0)).abs().max() <= 0.51
    assert wanted.std() > 0.1


def test_prompts_and_defaults_are_the_makers(loaded: Loaded) -> None:
    (one,) = loaded("anole").build_prompts(["a red cat"])
    assert (
        one.branch_token_ids[0][0] == BOS
        and one.branch_token_ids[0][-2:] == (TURN, BOI)
        and one.branch_token_ids[1] == (BOS, BOI)
    )
    assert (one.sampling_params.temperature, one.sampling_params.top_p, one.sampling_params.guidance_scale) == (
        0.7,
        0.9,
        3,
    )
    (two,) = loaded("lumina-mgpt").build_prompts(["a red cat"])
    assert two.branch_token_ids[0][-3:] == two.branch_token_ids[1] and two.branch_token_ids[0][-4] == TURN
    assert (two.sampling_params.temperature, two.sampling_params.top_k, two.sampling_params.guidance_scale) == (
        1,
        2000,
        4,
    )
    sly = loaded("anole").build_prompts(["a <racm3:<eoss>break>red cat<reserved08706>"])[0]
    assert sly.branch_token_ids == loaded("anole").build_prompts(["a red cat"])[0].branch_token_ids


# the VQGAN's files


@pytest.fixture(scope="module")
def published() -> dict[str, list[int]]:
    generated = json.loads((Path(__file__).parent / "published" / "chameleon_vq.json").read_text())
    shapes: dict[str, list[int]] = generated["tensors"]
    return shapes


def test_vqgan_tensors_match_published_checkpoint(published: dict[str, list[int]]) -> None:
    weights = {name: torch.empty(shape, device="meta") for name, shape in published.items()}
    made = vq.build_on_meta(vq.to_transformers_names(weights))
    assert {name: list(of.shape) for name, of in made.state_dict().items()} == {
        name: list(of.shape) for name, of in vq.to_transformers_names(weights).items()
    }
    assert (vq.pixels_per_code(made), made.quantize.num_embeddings) == (16, 8192)
    assert sum(4 * of.numel() for of in weights.values()) // 10**6 == 274, "float32, as large as the published file"


@pytest.mark.parametrize("name", ["decoder.up.4.block.2.conv2.bias", "post_quant_conv.weight", "encoder.conv_out.bias"])
def test_vqgan_with_missing_tensor_is_refused(published: dict[str, list[int]], name: str) -> None:
    weights = {other: torch.empty(shape, device="meta") for other, shape in published.items()}
    for wrong in ({other: of for other, of in weights.items() if other != name}, weights | {name: weights[name][:-1]}):
        with pytest.raises((vq.VQGANMismatch, KeyError)):
            vq.build_on_meta(vq.to_transformers_names(wrong))


def vqgan_of(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "vqvae" / FILE)


def run(*arguments: Any) -> Any:
    return command_line.run("convert", "chameleon-vq", *arguments)


def test_converted_vqgan_decodes_the_same_images(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    weights = vqgan_of(folder_of("lumina-mgpt"))
    torch.save({"state_dict": weights | {"loss.logvar": torch.zeros(1)}, "epoch": 3}, tmp_path / "vqgan.ckpt")
    done = run(tmp_path / "vqgan.ckpt", "--out", tmp_path / "vqvae")
    assert done.exit_code == 0 and "32 codes of 8 numbers, 2 by 2 pixels each" in done.stdout, done.output
    codes = torch.arange(24).view(1, 4, 6)
    one, other = (
        vq.decode_codes(vq.load(folder, CPU, torch.float32), codes)
        for folder in (tmp_path / "vqvae", folder_of("lumina-mgpt") / "vqvae")
    )
    assert one.equal(other)


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        ({"state_dict": {"a": torch.zeros(2)}}, "is no VQGAN of Chameleon"),
        ({"state_dict": {"decoder.up.0.block.0.conv1.weight": torch.zeros(2, 2, 3, 3)}}, "is no VQGAN of Chameleon"),
        ([1, 2], "no weights under state_dict"),
    ],
)
def test_other_checkpoints_are_refused(tmp_path: Path, checkpoint: Any, words: str) -> None:
    torch.save(checkpoint, tmp_path / "vqgan.ckpt")
    done = run(tmp_path / "vqgan.ckpt", "--out", tmp_path / "vqvae")
    lines = done.stderr.splitlines()
    assert done.exit_code == 2 and len(lines) == 1 and words in lines[0], done.output
    assert not (tmp_path / "vqvae").exists()


def test_levels_may_be_counted_either_way(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    weights, codes = vqgan_of(folder_of("lumina-mgpt")), torch.arange(16).view(1, 4, 4)
    save_file(
        {f"model.vqmodel.{name}": of for name, of in vq.to_transformers_names(weights).items()},
        tmp_path / "a.safetensors",
    )
    once = vq.to_transformers_names(weights)
    assert once.keys() != weights.keys() and vq.to_transformers_names(once).keys() == once.keys()
    one, other = (
        vq.decode_codes(vq.load(folder, CPU, torch.float32), codes)
        for folder in (tmp_path, folder_of("lumina-mgpt") / "vqvae")
    )
    assert one.equal(other)


# what is refused


@pytest.fixture
def copied(folder_of: Callable[[str], Path], tmp_path: Path) -> Iterator[Path]:
    """Copy Lumina-mGPT, to be damaged."""
    folder = tmp_path / "other"
    shutil.copytree(folder_of("lumina-mgpt"), folder)
    yield folder


def refused(folder: Path, words: str, kind: type[polydraft.PolydraftError] = WeightsError) -> None:
    with pytest.raises(kind, match=words) as caught:
        load(str(folder), modality="image")
    assert "\n" not in str(caught.value)


def test_a_chameleon_that_cannot_draw_is_for_questions(copied: Path) -> None:
    shutil.rmtree(copied / "vqvae")
    generated = json.loads((copied / "config.json").read_text())
    generated.pop("mask_image_logits")
    (copied / "config.json").write_text(json.dumps(generated))
    assert load_card(str(copied)).modality == "vlm"
    refused(copied, "is for vlm, not for image", polydraft.UnknownModel)


def test_missing_or_wrong_vqgan_is_refused(copied: Path, folder_of: Callable[[str], Path]) -> None:
    weights = vqgan_of(folder_of("lumina-mgpt"))
    file = copied / "vqvae" / FILE
    table = "quantize.embedding.weight"
    save_file(weights | {table: torch.cat([weights[table], weights[table]])}, file)
    refused(copied, "has no IMGIMGGDZ among the 59 ids that the model knows; it is of another model")
    save_file({name: of for name, of in weights.items() if "mid" not in name}, file)
    refused(copied, "the VQGAN in .* cannot be loaded .*tensors do not fit")
    save_file({"a": torch.zeros(1)}, file)
    refused(copied, "the VQGAN in .* cannot be loaded .it has no decoder")


def test_missing_vqgan_error_names_folder_and_repository(copied: Path) -> None:
    shutil.rmtree(copied / "vqvae")
    refused(copied, "has no vqvae; put leloy/Anole-7b-v0.1-vqvae-hf into its subfolder vqvae")


def test_words_that_are_missing_are_named(copied: Path) -> None:
    (copied / "tokenizer.json").unlink()
    refused(copied, "published without a tokenizer; put tokenizer.json .* of Alpha-VLLM/Lumina-mGPT-7B-768")


@pytest.mark.parametrize("size", ["10x8", "12x6", "400x400"])
def test_sizes_off_the_patch_grid_are_refused(loaded: Loaded, size: str) -> None:
    with pytest.raises(polydraft.InvalidArgument, match=f"size={size} is"):
        loaded("lumina-mgpt").run("a cat", size=size)


def test_the_size_is_what_the_name_says(copied: Path) -> None:
    named = copied.rename(copied.parent / "Lumina-mGPT-7B-512")
    pipe = load(str(named))
    assert (pipe.dimensions, pipe.grid, pipe.num_new_tokens) == ("512x512", (256, 256), 256 * 257 - 1)
