"""LlamaGen against a second implementation of what is published: names, codes, pixels; and its conversion."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor

import polydraft
from polydraft.modalities.image.families.llamagen import convert as conversion
from polydraft.modalities.image.families.llamagen.config import LlamaGenConfig
from polydraft.modalities.image.families.llamagen.network import GridRotaryEmbedding, published_tensors
from polydraft.modalities.loading import load

from ....apps import command_line
from .conftest import Loaded
from .folders import (
    GEN_CLASSES,
    GEN_HEADS,
    GEN_PLACES,
    GEN_SIDE,
    GEN_WIDTH,
    published_llamagen,
    published_vq,
)

CAPTIONS = ["a red cat", "owls reading late at night", "a"]
LABELS = ["7", "3", "88"]
MANIFEST = json.loads(Path(__file__).with_name("llamagen.json").read_text())
Weights = dict[str, Tensor]


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def published_logits(weights: Weights, prompt: Tensor, seen: Tensor, codes: Tensor) -> Tensor:
    """Logits `[T + 1, V]` of codes `[T]` behind a prompt `[P, D]`, whose places `seen` `[P]` bool tells apart.

    Rotations are products of complex numbers, which are zero in the prompt.
    """
    places, x = len(prompt), torch.cat([prompt, weights["tok_embeddings.weight"][codes]])
    size = GEN_WIDTH // GEN_HEADS
    rates = 10_000.0 ** -(torch.arange(0, size // 2, 2) / (size // 2))
    where = torch.arange(len(codes))
    angles = torch.cat([(where // GEN_SIDE)[:, None] * rates, (where % GEN_SIDE)[:, None] * rates], -1)
    drawn = torch.polar(torch.ones_like(angles), angles)
    turn = torch.cat([torch.zeros(places, size // 2), drawn]).to(torch.complex128)
    visible = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    visible[:, :places] &= seen
    visible |= torch.eye(len(x), dtype=torch.bool)

    def turned(heads: Tensor) -> Tensor:
        pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn[:, None]).flatten(-2)

    for layer in range(3):
        layer_weights = {
            name.split(".", 2)[2]: weight for name, weight in weights.items() if name.startswith(f"layers.{layer}.")
        }
        heads = (norm(x, layer_weights["attention_norm.weight"]) @ layer_weights["attention.wqkv.weight"].T).chunk(
            3, -1
        )
        queries, keys, values = (part.unflatten(-1, (GEN_HEADS, -1)) for part in heads)
        scores = torch.einsum("qhd,khd->hqk", turned(queries), turned(keys)) / size**0.5
        chances = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        x = x + torch.einsum("hqk,khd->qhd", chances, values).flatten(1) @ layer_weights["attention.wo.weight"].T
        read = norm(x, layer_weights["ffn_norm.weight"])
        gate, up = (read @ layer_weights[f"feed_forward.w{part}.weight"].T for part in (1, 3))
        x = x + (F.silu(gate) * up) @ layer_weights["feed_forward.w2.weight"].T
    return norm(x[places - 1 :], weights["norm.weight"]) @ weights["output.weight"].T


def likeliest(weights: Weights, branches: list[tuple[Tensor, Tensor]], guidance: float) -> Tensor:
    """Return an image's greedy codes; branches are prompts with their masks, guidance's as well if there is any."""
    codes = torch.zeros(0, dtype=torch.long)
    while len(codes) < GEN_SIDE**2:
        logits = [published_logits(weights, prompt, seen, codes)[-1] for prompt, seen in branches]
        found = logits[0] if len(logits) == 1 else logits[1] + guidance * (logits[0] - logits[1])
        codes = torch.cat([codes, found.argmax()[None]])
    return codes


def read_caption_branches(folder: Path, weights: Weights, caption: str) -> list[tuple[Tensor, Tensor]]:
    """Read captions as published: padded, moved to the right, and padding zeroed and masked."""
    words = hf.PreTrainedTokenizerFast.from_pretrained(folder / "text")
    reader = hf.T5EncoderModel.from_pretrained(folder / "text", dtype=torch.float64).eval()
    asked = words(caption, padding="max_length", padding_side="right", max_length=GEN_PLACES, return_tensors="pt")
    asked.pop("token_type_ids", None)
    count = int(asked["attention_mask"].sum())
    with torch.no_grad():
        features = reader(**asked).last_hidden_state[0].roll(GEN_PLACES - count, 0)
    seen = torch.arange(GEN_PLACES) >= GEN_PLACES - count
    both = (features * seen[:, None], weights["cls_embedding.uncond_embedding"])

    def read(features: Tensor) -> Tensor:
        hidden = F.gelu(features @ weights["cls_embedding.cap_proj.fc1.weight"].T, approximate="tanh")
        return hidden @ weights["cls_embedding.cap_proj.fc2.weight"].T

    return [(read(part), seen) for part in both]


def read_class_branches(folder: Path, weights: Weights, caption: str) -> list[tuple[Tensor, Tensor]]:
    table, seen = weights["cls_embedding.embedding_table.weight"], torch.ones(1, dtype=torch.bool)
    return [(table[[label]], seen) for label in (int(caption), GEN_CLASSES)]


FAMILIES = {"llamagen_t2i": (CAPTIONS, read_caption_branches), "llamagen_c2i": (LABELS, read_class_branches)}


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_codes_equal_published_model(
    folder_of: Callable[[str], Path], loaded: Loaded, family: str, rows: int, guidance: float
) -> None:
    folder, (asked, branches) = folder_of(family), FAMILIES[family]
    weights = {name: weight.double() for name, weight in published_llamagen(family).items()}
    wanted = torch.stack(
        [
            likeliest(weights, branches(folder, weights, caption)[: 1 if guidance == 1 else 2], guidance)
            for caption in asked[:rows]
        ]
    )
    assert len(wanted.unique()) > 5, "what comes before must matter"
    pipe = loaded(family, "float64")
    for method in ("ar", "jacobi(window=6)"):
        drawn = pipe(asked[:rows], method=method, temperature=0.0, guidance_scale=guidance)
        assert drawn.tokens.equal(wanted), method


def expanded(patterns: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes that a manifest stands for."""
    found: dict[str, tuple[int, ...]] = {}
    for pattern, size in patterns.items():
        names = [pattern]
        while any("{" in name for name in names):
            names = [re.sub(r"\{\d+-\d+\}", str(number), name, count=1) for name in names for number in numbers(name)]
        for name in names:
            if name.endswith(".*"):
                found[f"{name[:-1]}weight"], found[f"{name[:-1]}bias"] = tuple(size), tuple(size[:1])
            else:
                found[name] = tuple(size)
    return found


def numbers(pattern: str) -> range:
    first, last = map(int, re.findall(r"\{(\d+)-(\d+)\}", pattern)[0])
    return range(first, last + 1)


def on_meta(part: str) -> Weights:
    return {name: torch.empty(size, device="meta") for name, size in expanded(MANIFEST[part]).items()}


@pytest.mark.parametrize(
    ("part", "config"),
    [
        ("t2i_XL", LlamaGenConfig("llamagen_t2i", 1280, 36, 20, 3584, 32)),
        ("c2i_L", LlamaGenConfig("llamagen_c2i", 1024, 24, 16, 2816, 24, prompt=1)),
    ],
)
def test_names_and_shapes_are_the_published_ones(part: str, config: LlamaGenConfig) -> None:
    wanted = on_meta(part)
    assert {name: tuple(tensor.shape) for name, tensor in published_tensors(config).items()} == expanded(MANIFEST[part])
    assert conversion.infer_config(Path("x.pt"), wanted) == config


def test_vq_tensors_match_published_checkpoint() -> None:
    found = conversion.to_transformers_names(on_meta("vq_ds16"))
    found.pop("quantize.codebook_used")
    with torch.device("meta"):
        model = hf.JanusVQVAE(hf.JanusVQVAEConfig())
    assert {name: tensor.shape for name, tensor in found.items()} == {
        name: tensor.shape for name, tensor in model.state_dict().items()
    }


def test_rotary_rotates_codes_but_not_prompts() -> None:
    cos, sin = GridRotaryEmbedding(3, 8)(torch.zeros(1), torch.tensor([[-2, -1, 0, 1, 3, 8]]))
    assert not cos[0, :2].any() and not sin[0, :2].any()
    assert cos[0, 2].eq(1).all() and not sin[0, 2].any()
    assert not sin[0, 3, :2].any() and sin[0, 3, 2:4].all(), "the first row turns with columns alone"
    assert sin[0, 4, :2].all() and not sin[0, 4, 2:4].any(), "the first column with rows alone"
    assert cos[0, 5, :2].equal(cos[0, 5, 2:4]) and cos[..., :4].equal(cos[..., 4:])


def test_prompt_branches_have_equal_length_without_padding(loaded: Loaded) -> None:
    pipe = loaded("llamagen_t2i")
    (prompt,) = pipe.build_prompts(["a Red cat"])
    assert prompt.branch_token_ids[0][-1] == 1 and len(prompt.branch_token_ids[0]) == 4, (
        "the end of a text, in lower case"
    )
    assert prompt.branch_token_ids[1] == tuple(range(GEN_PLACES - 4, GEN_PLACES))
    sampling = prompt.sampling_params
    assert (sampling.temperature, sampling.top_k, sampling.guidance_scale) == (1, 1000, 7.5)
    (label,) = loaded("llamagen_c2i").build_prompts(["7"])
    assert label.branch_token_ids == ((7,), (GEN_CLASSES,))
    assert (label.sampling_params.top_k, label.sampling_params.guidance_scale) == (2000, 4)


def test_caption_longer_than_the_model_reads_is_refused(loaded: Loaded) -> None:
    pipe = loaded("llamagen_t2i")
    fits = "a red cat " * (GEN_PLACES // 3 - 1)
    assert len(pipe.run(fits).prompts[0].branch_token_ids[0]) <= GEN_PLACES
    with pytest.raises(polydraft.PromptError, match=f"tokens and .* reads at most {GEN_PLACES}; shorten the prompt"):
        pipe.run(fits * 2)


@pytest.mark.parametrize("text", ["a red cat", "100", "-1", "7 8", "²"])
def test_what_is_no_class_is_refused(loaded: Loaded, text: str) -> None:
    with pytest.raises(polydraft.PromptError, match="give the number of one, from 0 to 99"):
        loaded("llamagen_c2i").run(text)


@pytest.fixture
def tiny_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(conversion.HEADS_BY_WIDTH, GEN_WIDTH, GEN_HEADS)
    yield


def run(*arguments: Any) -> Any:
    return command_line.run("convert", *arguments)


@pytest.mark.usefixtures("tiny_is_known")
@pytest.mark.parametrize("key", ["model", "module", "state_dict", None])
def test_conversion_keeps_every_number(tmp_path: Path, key: str | None) -> None:
    weights = published_llamagen("llamagen_c2i")
    torch.save(weights if key is None else {key: weights, "epoch": 3}, tmp_path / "c2i.pt")
    done = run("llamagen", tmp_path / "c2i.pt", "--out", tmp_path / "made", "--size", 80)
    assert done.exit_code == 0 and "LlamaGen of classes, 3 layers of 32, 80 pixels a side" in done.stdout, done.output
    from safetensors.torch import load_file

    kept = load_file(tmp_path / "made" / "model.safetensors")
    assert kept.keys() == weights.keys() and all(kept[name].equal(weights[name]) for name in kept)
    torch.save({"model": published_vq()}, tmp_path / "vq.pt")
    assert run("llamagen-vq", tmp_path / "vq.pt", "--out", tmp_path / "made" / "vq").exit_code == 0
    assert load(str(tmp_path / "made"), modality="image").dimensions == "80x80"


def lacking(weights: Weights) -> Weights:
    return {name: weight for name, weight in weights.items() if name != "layers.1.attention.wo.weight"}


@pytest.mark.usefixtures("tiny_is_known")
@pytest.mark.parametrize(
    ("command", "weights", "words"),
    [
        ("llamagen", lacking(published_llamagen("llamagen_t2i")), "1 tensors of .* do not fit a LlamaGen of width 32"),
        ("llamagen", {"a": torch.zeros(1)}, "holds the weights of another model than LlamaGen"),
        ("llamagen-vq", {"a": torch.zeros(1)}, "makes no pixels of codes"),
        ("llamagen-vq", published_llamagen("llamagen_t2i"), "makes no pixels of codes"),
    ],
)
def test_what_cannot_be_converted_is_one_sentence(tmp_path: Path, command: str, weights: Weights, words: str) -> None:
    torch.save({"model": weights}, tmp_path / "x.pt")
    done = run(command, tmp_path / "x.pt", "--out", tmp_path / "made")
    lines = done.stderr.splitlines()
    assert done.exit_code == 2 and len(lines) == 1 and re.search(words, lines[0]), done.output
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("lost", "words"), [("vq", "has no vq; convert .*llamagen-vq"), ("text", "has no text; put google/flan-t5-xl")]
)
def test_missing_part_error_says_how_to_get_it(
    folder_of: Callable[[str], Path], tmp_path: Path, lost: str, words: str
) -> None:
    shutil.copytree(folder_of("llamagen_t2i"), tmp_path / "other")
    shutil.rmtree(tmp_path / "other" / lost)
    with pytest.raises(polydraft.WeightsError, match=words) as caught:
        load(str(tmp_path / "other"))
    assert "\n" not in str(caught.value)


def test_other_sizes_are_refused(loaded: Loaded) -> None:
    with pytest.raises(polydraft.InvalidArgument, match="generates 80x80"):
        loaded("llamagen_t2i").run("a cat", size="128x128")
