"""A smaller model of the same codebook as drafter: its ids are others, what is drawn is not, and it is guided too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

import polydraft
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load

from ....apps.command_line import assert_refused, run
from ....covering import every_pair
from .folders import SIZES, louder

CAPTIONS = ["a red cat", "owls reading late at night", "a"]
FolderOf = Callable[[str], Path]
FILE = "model.safetensors"
METHODS = ("draft(depth=3)", "draft(depth=3,width=2,total=5)")
TEXTS = {  # embeddings of words, and how their ids are written in configurations
    "janus": "model.language_model.embed_tokens.weight",
    "emu3": "model.text_model.embed_tokens.weight",
}


def changed(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """The same with other tensors."""
    save_file(change(load_file(folder / FILE)), folder / FILE, {"format": "pt"})


def renumbered(source: Path, folder: Path) -> None:
    """The same Janus whose words have other numbers: all but the special ones the other way round, and one between."""
    shutil.copytree(source, folder)
    told = json.loads((folder / "tokenizer.json").read_text())
    vocab: dict[str, int] = told["model"]["vocab"]
    special = {token["content"] for token in told["added_tokens"]}
    plain = sorted((word for word in vocab if word not in special), key=vocab.__getitem__)
    order = [*special, *reversed(plain)]
    order = [word for word in order if word in special][::-1] + [word for word in order if word not in special]
    numbers = {word: place for place, word in enumerate(order)}
    told["model"]["vocab"] = numbers
    for token in told["added_tokens"]:
        token["id"] = numbers[token["content"]]
    (folder / "tokenizer.json").write_text(json.dumps(told))
    for name in ("config.json", "generation_config.json"):
        asked = json.loads((folder / name).read_text())
        for part in (asked, asked.get("text_config", {})):
            for key in ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"):
                if isinstance(part.get(key), int):
                    part[key] = numbers[{number: word for word, number in vocab.items()}[part[key]]]
        (folder / name).write_text(json.dumps(asked))

    def moved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = torch.empty(len(vocab), dtype=torch.long)
        for word, number in vocab.items():
            rows[numbers[word]] = number
        return tensors | {TEXTS["janus"]: tensors[TEXTS["janus"]][rows].contiguous()}

    changed(folder, moved)


def weaker(source: Path, folder: Path) -> None:
    """The same with its last layer's weights blurred: a drafter that is sometimes right."""
    shutil.copytree(source, folder)
    torch.manual_seed(3)

    def blurred(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: of + 0.3 * of.std() * torch.randn_like(of) if ".layers.2." in name and of.ndim > 1 else of
            for name, of in tensors.items()
        }

    changed(folder, blurred)


def beside(folder: Path, drafter: Path, dtype: str = "float32", size: str | None = None) -> ImagePipeline:
    return load(str(folder), drafter=drafter, dtype=dtype, modality="image").sized(size)


def test_words_are_translated_and_codes_are_not(folder_of: FolderOf, tmp_path: Path) -> None:
    """The same weights under other numbers: every draft is right, guided or not."""
    renumbered(folder_of("janus"), tmp_path / "other")
    alone = load(str(tmp_path / "other"), dtype="float64", modality="image")
    pipe = beside(folder_of("janus"), tmp_path / "other", "float64")
    one, other = (which.prompts_to_ids(CAPTIONS[:1])[0].branches for which in (pipe, alone))
    assert one != other and list(map(len, one)) == list(map(len, other))
    read = pipe.drafter("lm").translation.read
    for branch, wanted in zip(one, other, strict=True):
        assert (read[torch.tensor(branch) + pipe.family.size] - pipe.family.size).tolist() == list(wanted)
    for guidance in (1.0, 3.0):
        asked: dict[str, Any] = {"seed": 3, "guidance_scale": guidance, "temperature": 1.0}
        drawn = pipe(CAPTIONS, method="draft(depth=3)", **asked)
        assert drawn.tokens.equal(pipe(CAPTIONS, method="ar", **asked).tokens)
        assert drawn.tokens.equal(alone(CAPTIONS, method="ar", **asked).tokens)
        assert drawn.stats.mean_accepted_length > 3.5, "a draft of the target's own law is always right"


@pytest.mark.parametrize(
    ("family", "temperature", "guidance", "rows"),
    every_pair(("janus", "emu3", "imagegpt", "lumina-mgpt", "liquid"), (0.0, 1.0), (1.0, 2.5), (1, 3)),
)
def test_a_sibling_drafts_what_plain_decoding_draws(
    folder_of: FolderOf, tmp_path: Path, family: str, temperature: float, guidance: float, rows: int
) -> None:
    weaker(folder_of(family), tmp_path / "small")
    pipe = beside(folder_of(family), tmp_path / "small", size=SIZES.get(family))
    asked: dict[str, Any] = {"seed": 3, "temperature": temperature}
    asked |= {} if pipe.family.branches == 1 else {"guidance_scale": guidance}
    plain = pipe(CAPTIONS[:rows], method="ar", **asked)
    for method in METHODS:
        drawn = pipe(CAPTIONS[:rows], method=method, **asked)
        assert drawn.tokens.equal(plain.tokens), method
        assert drawn.stats.mean_accepted_length > 1.5, method
    assert pipe.default_method.name == "draft"


def test_a_model_without_ends_of_rows_drafts_for_one_with_them(folder_of: FolderOf) -> None:
    """Anole and Lumina-mGPT share Chameleon's codes."""
    pipe = beside(folder_of("lumina-mgpt"), folder_of("anole"), size=None)
    assert pipe.grid != load(str(folder_of("anole")), modality="image").grid
    with pytest.raises(polydraft.WeightsError, match="tiny-anole draws 4x4 codes and 4x6 are asked for"):
        pipe.sized("12x8")("a red cat")
    square = pipe.sized("8x8")
    for method in METHODS:
        drawn = square(CAPTIONS, method=method, seed=3)
        assert drawn.tokens.equal(square(CAPTIONS, method="ar", seed=3).tokens)


def test_a_codebook_that_does_not_match_is_one_sentence(folder_of: FolderOf, tmp_path: Path) -> None:
    janus, out = folder_of("janus"), tmp_path / "x.png"
    shutil.copytree(janus, tmp_path / "turned")
    changed(tmp_path / "turned", lambda kept: {
        name: of.flip(0).contiguous() if name.endswith("quantize.embedding.weight") else of for name, of in kept.items()
    })  # fmt: skip
    plain = hf.LlamaForCausalLM(hf.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    ))  # fmt: skip
    louder(plain).save_pretrained(tmp_path / "words")
    for drafter, word in (
        (folder_of("imagegpt"), "has 16 codes where tiny-janus has 32"),
        (tmp_path / "turned", "has other code vectors than tiny-janus"),
        (tmp_path / "words", "draws no pictures; tiny-janus takes a smaller model with its codes"),
    ):
        done = run("image", "a cat", "--model", janus, "--drafter", drafter, "-o", out)
        assert_refused(done, word)
    assert not out.exists()


def test_prompts_that_only_the_model_reads_are_refused(folder_of: FolderOf) -> None:
    folder = folder_of("llamagen_t2i")
    with pytest.raises(polydraft.WeightsError, match="prompts that are more than their ids"):
        beside(folder, folder)("a red cat")


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_branches_that_end_with_ids_of_their_own_are_read_so(folder_of: FolderOf, guidance: float) -> None:
    """A prompt is a class, and guidance leads away from the class that is none; the drafter is the target once more."""
    folder = folder_of("llamagen_c2i")
    pipe = beside(folder, folder, "float64")
    asked: dict[str, Any] = {"seed": 3, "guidance_scale": guidance, "temperature": 1.0}
    drawn = pipe(["7", "3", "88"], method="draft(depth=3)", **asked)
    assert drawn.tokens.equal(pipe(["7", "3", "88"], method="ar", **asked).tokens)
    assert drawn.stats.mean_accepted_length > 3


def test_the_command_takes_a_sibling(folder_of: FolderOf, tmp_path: Path) -> None:
    weaker(folder_of("janus"), tmp_path / "small")
    done = run(
        "image", "a red cat", "--model", folder_of("janus"), "--drafter", tmp_path / "small", "--compare",
        "-o", tmp_path / "x.png",
    )  # fmt: skip
    assert done.exit_code == 0 and "draft, 16 tokens" in done.output and "the same tokens" in done.output, done.output
