"""Drafters trained for families: their features are the target's, and drafting changes no image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from polydraft.apps.data.samples import Samples
from polydraft.apps.train import answers, drafter
from polydraft.core.distillation.distill import generate_outputs
from polydraft.core.distillation.examples import run_target
from polydraft.core.drafters.heads.medusa import MedusaHeads
from polydraft.core.methods.registry import parse
from polydraft.core.target.conformance import effective_guarantee
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
def test_teacher_forced_features_match_generation_features(family: str, loaded: Loaded, tmp_path: Path) -> None:
    """Features predict what was generated, except forced ids, also from samples on disk."""
    pipe = loaded(family, "float64")
    texts = ["7", "3", "88"] if family == "llamagen_c2i" else CAPTIONS
    asked = pipe.build_prompts(texts, sampling=pipe.sampling_params(temperature=0.0, guidance_scale=1.0))
    method, target = pipe.method(parse("ar")), pipe.target()
    drawn = Samples(target, tmp_path, undrafted=answers.forced(pipe.token_mask))
    drawn.draw(method, lambda index: asked if index == 0 else [], "taught", 0)
    examples = drawn.examples(range(3))
    features, embeddings = run_target(target, examples)
    following = torch.cat([examples.ids[:, 1:], examples.ids[:, :1]], 1)[examples.loss_mask]
    codes = pipe.token_mask[0]
    predicted = target.compute_logits(features[examples.loss_mask]).masked_fill(~codes, -torch.inf).argmax(-1)
    assert predicted.equal(following) and codes[following].all()
    assert len(following) == 3 * pipe.num_new_tokens - sum(
        int((~codes[row]).sum()) for row in generate_outputs(method, asked)
    )
    for row, prompt in enumerate(asked):
        length = len(prompt.branch_token_ids[0])
        assert target.tokens_to_ids(examples.ids[row, :length]).tolist() == list(prompt.branch_token_ids[0])
    assert embeddings.shape == features.shape


@pytest.mark.parametrize(
    ("family", "kind"), [("janus", "eagle"), ("janus", "hydra"), ("emu3", "eagle"), ("emu3", "hydra")]
)
def test_trained_drafter_matches_plain_decoding(
    family: str, kind: str, folder_of: Callable[[str], Path], prompts: Path, tmp_path: Path
) -> None:
    """Train for seconds from a file of prompts, then load the drafter's folder by name."""
    model, size, out = str(folder_of(family)), SIZES.get(family), tmp_path / kind
    report = drafter.run(model, kind, out, 0.02, data=str(prompts), held_out=0.4, size=size)
    pipe = load(model, drafter=out, dtype="float32", modality="image").with_size(size)
    here = effective_guarantee(
        "identical", load(model, modality="image").target()
    )  # fp32 heads of 8 do not earn it with AVX2 alone
    assert report.steps > 0 and report.trial.same and report.trial.guarantee == here
    candidates = pipe.method(pipe.default_method).drafter.candidates
    assert pipe.default_method.name == "auto" and {"eagle2", "hydra"} & set(candidates)
    for temperature, guidance, rows in ((0.0, 1.0, 1), (1.0, 2.5, 3)):
        asked: dict[str, Any] = {"seed": 5, "temperature": temperature, "guidance_scale": guidance}
        plain = pipe(CAPTIONS[:rows], method="ar", **asked)
        for method in METHODS[kind]:
            drawn = pipe(CAPTIONS[:rows], method=method, **asked)
            assert drawn.tokens.equal(plain.tokens), method
    sized = [] if size is None else ["--size", size]
    done = run("image", "a red cat", "--model", model, "--drafter", out, *sized, "-o", tmp_path / "x.png")
    assert done.exit_code == 0 and pipe.default_method.name in done.stdout, done.output


def test_drafter_is_guided_like_the_target(loaded: Loaded) -> None:
    """A head that repeats the target drafts guided distributions, as the target's are."""
    pipe = loaded("janus", "float32")
    heads = MedusaHeads(pipe.family.config).requires_grad_(False)
    taught = pipe.copy_with(_drafters={"heads": heads}, _methods={})
    taught.card = replace(pipe.card, manifest=pipe.card.manifest | {"drafters": {"heads": "heads"}})
    for guidance in (1.0, 4.0):
        asked: dict[str, Any] = {"seed": 5, "guidance_scale": guidance}
        drawn = taught(CAPTIONS, method="medusa(depth=2,width=2,nodes=4)", **asked)
        assert drawn.tokens.equal(pipe(CAPTIONS, method="ar", **asked).tokens)


REFUSED: dict[str, tuple[str, list[str], str]] = {
    "a language model": ("janus", ["--kind", "lm", "--data", "PROMPTS"], "give a smaller model with its codes"),
    "no data": ("janus", ["--kind", "eagle"], "give --data with prompts"),
    "another size": ("janus", ["--kind", "eagle", "--data", "PROMPTS", "--size", "8x8"], "tiny-janus generates 64x64"),
    "no layers": ("imagegpt", ["--kind", "eagle", "--data", "PROMPTS"], "make no drafter here"),
    "captions that are read": ("llamagen_t2i", ["--kind", "hydra", "--data", "PROMPTS"], "more than their ids"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_one_sentence(
    name: str, folder_of: Callable[[str], Path], prompts: Path, tmp_path: Path
) -> None:
    family, options, word = REFUSED[name]
    texts = [str(prompts) if option == "PROMPTS" else option for option in options]
    done = run("train", "drafter", "--target", folder_of(family), *texts, "--minutes", "0.02", "-o", tmp_path / "out")
    assert_refused(done, word)


def test_size_needs_an_image_model() -> None:
    done = run("train", "drafter", "--target", "tiny-vlm", "--kind", "eagle", "--size", "8x8", "-o", "never")
    assert_refused(done, "generates no images")
