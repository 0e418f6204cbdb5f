"""Plans before pictures: a scene is told by its plan, and a model that has plans writes one first, drafted or not."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import polydraft
from polydraft.apps.train.image.data import belonging
from polydraft.core.decode import join, start, step
from polydraft.core.law.history import History
from polydraft.core.law.sampling import Sampling
from polydraft.core.methods.registry import parse
from polydraft.modalities.image import plan, shows, vocabulary
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.image.vq import VQConfig, VQTokenizer
from polydraft.modalities.loading import load
from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.scene import CELLS, place
from polydraft.modalities.world.worlds import EVERYTHING, FLAT

from ...covering import first
from ...decoding import run, same
from .families.folders import louder

CAPTIONS = ["two frogs in the snow", "a cat above a star on a blue background", "three bees under the stars"]
IDENTICAL = ("jacobi(window=7)", "jacobi(window=9,init=above)", "pld", "early-exit(layers=1,depth=3)")
OTHERS = ("sjd(window=6)", "pjd", "lantern(k=5)", "jacobi+top-k(k=4)", "typical", "lantern-ratio(k=5)")
SHOWS = torch.rand(1 + len(KINDS), 64, generator=torch.Generator().manual_seed(1)) < 0.3  # grounds, and each kind


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> ImagePipeline:
    """A random model of the settings' world."""
    folder = tmp_path_factory.mktemp("planned")
    words, shape = vocabulary.of_pictures(EVERYTHING), VQConfig(64, 4, 16, 16, 1)
    config = LlamaConfig(
        vocab_size=vocabulary.code_offset(words) + shape.codebook_size, hidden_size=32, intermediate_size=48,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    louder(LlamaForCausalLM(config)).save_pretrained(folder / "target")
    words.save(str(folder / "target" / "tokenizer.json"))
    (folder / "tokenizer").mkdir()
    torch.manual_seed(0)
    save_file(VQTokenizer(shape).state_dict(), folder / "tokenizer" / "model.safetensors")
    (folder / "tokenizer" / "config.json").write_text(json.dumps(asdict(shape)))
    shows.save(SHOWS, folder / "tokenizer")
    manifest = {"format": 1, "modality": "image", "world": "settings", "drafters": {}, "defaults": {"method": "jacobi"}}
    (folder / "polydraft.json").write_text(json.dumps(manifest))
    found = load(str(folder), dtype="float32")
    assert isinstance(found, ImagePipeline)
    return found


@given(seed=st.integers(0, 2**32 - 1))
def test_a_plan_tells_what_stands_where(seed: int) -> None:
    rng = np.random.default_rng(seed)
    composition = EVERYTHING.composition(rng)
    scene = place(composition, rng)
    said = plan.of(scene)
    assert len(said) == plan.LENGTH and Counter(plan.things(said)) == Counter(scene.objects)
    kinds = [kind for kind in said[::2] if kind != plan.NOTHING]
    assert kinds == [group.kind for group in composition.groups for _ in range(group.count)]  # as the caption says them
    assert plan.of(replace(scene, objects=scene.objects[::-1]))[::2] != kinds or len(set(kinds)) == 1


def test_every_word_of_a_plan_has_an_id_of_its_own() -> None:
    words = vocabulary.of_pictures(FLAT)
    ids = [words.token_to_id(word) for word in (*plan.words(), *KINDS)]
    assert None not in ids and len(set(ids)) == len(ids) == 1 + 10**2 + 13**2 + len(KINDS)
    assert plan.said(words) == plan.LENGTH and plan.said(vocabulary.build(FLAT.vocabulary(), {})) == 0
    assert plan.things(["cat", plan.NOTHING, plan.NOTHING, "<small@0,0>", "cat", "<small@12,12>"])[0].x == 96


@given(seed=st.integers(0, 2**32 - 1), committed=st.integers(0, plan.LENGTH))
def test_cells_of_what_a_plan_has_stand_there(seed: int, committed: int) -> None:
    """Wherever the root stands in it; the rest of the plan is drafted, as is the picture behind it."""
    rng = np.random.default_rng(seed)
    scene = place(EVERYTHING.composition(rng), rng)
    words = vocabulary.of_pictures(EVERYTHING)
    said, first = [words.token_to_id(word) for word in plan.of(scene)], vocabulary.code_offset(words)
    codes = torch.arange(first + 8) >= first
    slots = plan.Slots.of(words, codes)
    line = torch.tensor([[5, *said, *[first] * CELLS]])  # a prompt of one word
    drafted = line.shape[1] - 1 - committed
    known, depth = torch.arange(line.shape[1])[None] <= committed, torch.arange(drafted + 1)[None]
    paths = line[:, None, committed:].expand(-1, drafted + 1, -1)
    history = History(
        line.where(known, 0), known.sum(1), paths, depth, committed + depth, torch.tensor([plan.LENGTH + CELLS])
    )
    found = torch.full((plan.LENGTH + CELLS,), -1)
    found[committed:] = slots(history)[0, :-1]
    assert found[committed : plan.LENGTH].tolist() == [place % 2 for place in range(committed, plan.LENGTH)]
    stands = torch.from_numpy(belonging(scene.objects)).flatten()
    kinds = torch.full((CELLS,), plan.GROUND)
    for thing in scene.objects:
        kinds[torch.from_numpy(belonging([thing])).flatten()] = plan.FIRST + list(KINDS).index(thing.kind)
    assert torch.equal(found[plan.LENGTH :], kinds) and torch.equal(kinds >= plan.FIRST, stands)


@torch.inference_mode()
def test_trees_are_the_same_whether_classes_are_foreseen_or_asked_for_a_level() -> None:
    """While the plan is being said and behind it, in rows that are not equally far."""
    pipe = load("tiny-image")
    drafts = []
    for planned in (pipe.sampler.planned, None):
        method = replace(pipe.method(parse("eagle2")), sampler=replace(pipe.sampler, planned=planned))
        prompts = [replace(pipe.prompt(caption, 5, pipe.sampling()), budget=40) for caption in CAPTIONS]
        batch = start(method, prompts[:1])
        step(method, batch)
        join(method, batch, prompts[1:], [1, 2])
        said = []
        while len(batch):
            draft = method.drafter.draft(batch.state, batch.drafts, method.sampler, batch.noise)
            said.append((draft.tokens, draft.parents))
            step(method, batch)
        drafts.append(said)
    assert len(drafts[0]) == len(drafts[1]) and pipe.sampler.planned == plan.LENGTH
    for mine, theirs in zip(*drafts, strict=True):
        assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1])


def proper(pipe: ImagePipeline, committed: torch.Tensor) -> bool:
    """Whether ids are kinds and places, turn by turn, and then codes that show what was planned for their cells."""
    words = [pipe.family.world.words.id_to_token(int(index)) for index in committed[: plan.LENGTH]]
    kinds, where = {plan.NOTHING, *KINDS}, {plan.NOTHING, *plan.places()}
    planned = set(words[::2]) <= kinds and set(words[1::2]) <= where
    codes = committed[plan.LENGTH :] - pipe.family.first
    stands: list[set[str]] = [set() for _ in range(CELLS)]
    for thing in plan.things(words):
        for cell in belonging([thing]).ravel().nonzero()[0]:
            stands[cell].add(thing.kind)
    lines = {(): 0} | {(kind,): 1 + index for index, kind in enumerate(KINDS)}
    shown = [len(found) > 1 or bool(SHOWS[lines[*found], code]) for found, code in zip(stands, codes, strict=True)]
    return planned and bool((codes >= 0).all()) and all(shown)


@pytest.mark.parametrize(("temperature", "guidance"), first(2, [(0.0, 1.0), (1.0, 2.5), (1.0, 1.0)]))
@pytest.mark.parametrize("min_p", [pytest.param(0.0, marks=pytest.mark.thorough), 0.1])
def test_a_plan_and_its_picture_are_the_same_drafted_or_not(
    pipe: ImagePipeline, temperature: float, guidance: float, min_p: float
) -> None:
    sampling = Sampling(temperature=temperature, guidance_scale=guidance, min_p=min_p)
    prompts = pipe.prompts_to_ids(CAPTIONS, sampling=sampling)
    plain, _ = run(pipe.method(parse("ar"), guidance != 1), prompts)
    assert all(proper(pipe, row) and len(row) == plan.LENGTH + 256 for row in plain)
    for name in IDENTICAL:
        drawn, _ = run(pipe.method(parse(name), guidance != 1), prompts)
        assert same(drawn, plain), name


@pytest.mark.parametrize("name", OTHERS)
def test_no_method_puts_anything_else_in_a_plan(pipe: ImagePipeline, name: str) -> None:
    rows, _ = run(pipe.method(parse(name), False), pipe.prompts_to_ids(CAPTIONS, sampling=Sampling()))
    assert all(proper(pipe, row) and len(row) == plan.LENGTH + 256 for row in rows)


def test_without_a_table_codes_show_anything() -> None:
    words = vocabulary.of_pictures(EVERYTHING)
    codes = torch.arange(vocabulary.code_offset(words) + 64) >= vocabulary.code_offset(words)
    told, silent = (plan.Slots.of(words, codes, table).classes for table in (SHOWS, None))
    assert torch.equal(told[plan.GROUND, codes], SHOWS[0]) and torch.equal(told[plan.FIRST :, codes], SHOWS[1:])
    assert torch.equal(told[: plan.GROUND], silent[: plan.GROUND]) and not told[:, ~codes][plan.GROUND :].any()
    assert torch.equal(silent[plan.GROUND :], codes.expand(len(silent) - plan.GROUND, -1))


def test_a_table_of_other_kinds_is_refused(tmp_path: Path) -> None:
    assert shows.load(tmp_path, 64) is None
    shows.save(SHOWS, tmp_path)
    assert torch.equal(shows.load(tmp_path, 64), SHOWS)
    for wrong in (SHOWS[1:], SHOWS & False, SHOWS[:, :-1]):
        shows.save(wrong, tmp_path)
        with pytest.raises(polydraft.WeightsError, match="install the model again"):
            shows.load(tmp_path, 64)


def test_rows_of_several_begin_behind_the_plan(pipe: ImagePipeline) -> None:
    prompts = pipe.prompts_to_ids(CAPTIONS, sampling=Sampling())
    plain, _ = run(pipe.method(parse("ar")), prompts)
    whole, _ = run(pipe.method(parse("pjd(lead=1024)")), prompts)  # no row begins before the one above has ended
    assert same(whole, plain)


def test_results_have_codes_alone(pipe: ImagePipeline, tmp_path: Path) -> None:
    drawn = pipe(CAPTIONS, seed=3)
    assert drawn.tokens.shape == (3, 256) and (drawn.tokens >= 0).all() and (drawn.tokens < 64).all()
    assert drawn.tokens.equal(pipe(CAPTIONS, seed=3, speculative=False).tokens)
    assert drawn.stats.tokens == 3 * (256 + plan.LENGTH) and (drawn.passes > 0).all()
    assert drawn.save(tmp_path / "x.png").is_file()
    with pytest.raises(polydraft.InvalidArgument, match="size=64x64 is not possible"):
        pipe(CAPTIONS[0], size="64x64")
