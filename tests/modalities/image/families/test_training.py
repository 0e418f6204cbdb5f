"""Drafters trained for families: what they learn from is what the target sees, and what they draft changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from polydraft.apps.train import drafter
from polydraft.apps.train.samples import Samples
from polydraft.core.drafters.heads.medusa import MedusaHeads
from polydraft.core.methods.registry import parse
from polydraft.core.model.proof import label
from polydraft.core.training.distill import collect
from polydraft.core.training.examples import read
from polydraft.modalities.loading import load

from ....apps.command_line import assert_refused, run
from .conftest import Loaded
from .folders import SIZES

CAPTIONS = ["a red cat", "owls reading late at night", "a"]
METHODS = {
    "eagle": ("eagle(depth=3,nodes=4)", "eagle2(depth=3,width=2,total=5)"), "hydra": ("hydra(depth=2,width=2,nodes=5)",)
}  # fmt: skip


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    file.write_text("\n".join(["a red cat", "two owls", "cat at night", "red owls reading", "a night", "late cat"]))
    return file


@pytest.mark.parametrize("family", ["janus", "emu3", "imagegpt", "glm_image", "llamagen_c2i", "lumina-mgpt"])
def test_what_is_read_of_a_sequence_is_what_was_seen_when_it_was_drawn(
    family: str, loaded: Loaded, tmp_path: Path
) -> None:
    """Its features say again what was drawn, forced ids aside, also from samples kept on disk."""
    pipe = loaded(family, "float64")
    told = ["7", "3", "88"] if family == "llamagen_c2i" else CAPTIONS
    asked = pipe.prompts_to_ids(told, sampling=pipe.sampling(temperature=0.0, guidance_scale=1.0))
    method, target = pipe.method(parse("ar")), pipe.target()
    drawn = Samples(target, tmp_path, forced=drafter.forced(pipe.mask))
    drawn.draw(method, lambda index: asked if index == 0 else [], "taught", 0)
    examples = drawn.examples(range(3))
    features, embeddings = read(target, examples)
    following = torch.cat([examples.ids[:, 1:], examples.ids[:, :1]], 1)[examples.judged]
    codes = pipe.mask[0]
    said = target.head(features[examples.judged]).masked_fill(~codes, -torch.inf).argmax(-1)
    assert said.equal(following) and codes[following].all()
    assert len(following) == 3 * pipe.budget - sum(int((~codes[row]).sum()) for row in collect(method, asked))
    for row, prompt in enumerate(asked):
        length = len(prompt.branches[0])
        assert target.prompt_of(examples.ids[row, :length]).tolist() == list(prompt.branches[0])
    assert embeddings.shape == features.shape


@pytest.mark.parametrize(
    ("family", "kind"), [("janus", "eagle"), ("janus", "hydra"), ("emu3", "eagle"), ("emu3", "hydra")]
)
def test_a_trained_drafter_draws_what_plain_decoding_draws(
    family: str, kind: str, folder_of: Callable[[str], Path], prompts: Path, tmp_path: Path
) -> None:
    """For seconds, from a file of prompts; then by name of its folder."""
    model, size, out = str(folder_of(family)), SIZES.get(family), tmp_path / kind
    report = drafter.run(model, kind, out, 0.02, data=str(prompts), held_out=0.4, size=size)
    pipe = load(model, drafter=out, dtype="float32", modality="image").sized(size)
    here = label("identical", load(model, modality="image").target())  # fp32 heads of 8 do not earn it with AVX2 alone
    assert report.steps > 0 and report.trial.same and report.trial.guarantee == here
    assert pipe.default_method.name in ("eagle2", "hydra")
    for temperature, guidance, rows in ((0.0, 1.0, 1), (1.0, 2.5, 3)):
        asked: dict[str, Any] = {"seed": 5, "temperature": temperature, "guidance_scale": guidance}
        plain = pipe(CAPTIONS[:rows], method="ar", **asked)
        for method in METHODS[kind]:
            drawn = pipe(CAPTIONS[:rows], method=method, **asked)
            assert drawn.tokens.equal(plain.tokens), method
    sized = [] if size is None else ["--size", size]
    done = run("image", "a red cat", "--model", model, "--drafter", out, *sized, "-o", tmp_path / "x.png")
    assert done.exit_code == 0 and pipe.default_method.name in done.stdout, done.output


def test_guidance_leads_the_drafter_away_from_what_it_leads_the_target(loaded: Loaded) -> None:
    """A head that says what the target said: drafted laws are of both branches, as the target's are."""
    pipe = loaded("janus", "float32")
    heads = MedusaHeads(pipe.family.config).requires_grad_(False)
    taught = pipe.changed(_drafters={"heads": heads}, _methods={})
    taught.card = replace(pipe.card, manifest=pipe.card.manifest | {"drafters": {"heads": "heads"}})
    for guidance in (1.0, 4.0):
        asked: dict[str, Any] = {"seed": 5, "guidance_scale": guidance}
        drawn = taught(CAPTIONS, method="medusa(depth=2,width=2,nodes=4)", **asked)
        assert drawn.tokens.equal(pipe(CAPTIONS, method="ar", **asked).tokens)


REFUSED: dict[str, tuple[str, list[str], str]] = {
    "a language model": ("janus", ["--kind", "lm", "--data", "PROMPTS"], "give a smaller model with its codes"),
    "no data": ("janus", ["--kind", "eagle"], "give --data with prompts"),
    "another size": ("janus", ["--kind", "eagle", "--data", "PROMPTS", "--size", "8x8"], "tiny-janus draws 64x64"),
    "no layers": ("imagegpt", ["--kind", "eagle", "--data", "PROMPTS"], "make no drafter here"),
    "captions that are read": ("llamagen_t2i", ["--kind", "hydra", "--data", "PROMPTS"], "more than their ids"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_one_sentence(
    name: str, folder_of: Callable[[str], Path], prompts: Path, tmp_path: Path
) -> None:
    family, options, word = REFUSED[name]
    told = [str(prompts) if option == "PROMPTS" else option for option in options]
    done = run("train", "drafter", "--target", folder_of(family), *told, "--minutes", "0.02", "-o", tmp_path / "out")
    assert_refused(done, word)


def test_a_size_is_for_pictures() -> None:
    done = run("train", "drafter", "--target", "tiny-vlm", "--kind", "eagle", "--size", "8x8", "-o", "never")
    assert_refused(done, "draws no pictures")
