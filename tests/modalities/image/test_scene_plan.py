"""Scene plans: tokens of a scene, the grammar that follows a plan, and the same output drafted or not."""

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
from polydraft.apps.lab.recipes.image.data import object_cells
from polydraft.core.decode import add_requests, decode_step, start_batch
from polydraft.core.methods.registry import parse
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.params import SamplingParams
from polydraft.modalities.image import code_contents, scene_plan, vocabulary
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.image.vq import VQConfig, VQTokenizer
from polydraft.modalities.loading import load
from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.scene import NUM_CELLS, place_objects
from polydraft.modalities.world.worlds import EVERYTHING, FLAT

from ...covering import first
from ...decoding import all_equal, run
from .families.folders import louder

CAPTIONS = ["two frogs in the snow", "a cat above a star on a blue background", "three bees under the stars"]
IDENTICAL = ("jacobi(window=7)", "jacobi(window=9,init=above)", "pld", "early-exit(layers=1,depth=3)")
OTHERS = ("sjd(window=6)", "pjd", "lantern(k=5)", "jacobi+top-k(k=4)", "typical", "lantern-ratio(k=5)")
SHOWS = torch.rand(1 + len(KINDS), 64, generator=torch.Generator().manual_seed(1)) < 0.3  # grounds, and each kind


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> ImagePipeline:
    """Load a random model of the settings' world."""
    folder = tmp_path_factory.mktemp("planned")
    words, shape = vocabulary.build_image_tokenizer(EVERYTHING), VQConfig(64, 4, 16, 16, 1)
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
    code_contents.save(SHOWS, folder / "tokenizer")
    manifest = {"format": 1, "modality": "image", "world": "settings", "drafters": {}, "defaults": {"method": "jacobi"}}
    (folder / "polydraft.json").write_text(json.dumps(manifest))
    found = load(str(folder), dtype="float32")
    assert isinstance(found, ImagePipeline)
    return found


@given(seed=st.integers(0, 2**32 - 1))
def test_a_plan_tells_what_stands_where(seed: int) -> None:
    rng = np.random.default_rng(seed)
    composition = EVERYTHING.random_composition(rng)
    scene = place_objects(composition, rng)
    plan = scene_plan.plan_for_scene(scene)
    assert len(plan) == scene_plan.PLAN_LENGTH and Counter(scene_plan.parse_plan(plan)) == Counter(scene.objects)
    kinds = [kind for kind in plan[::2] if kind != scene_plan.NO_OBJECT]
    assert kinds == [group.kind for group in composition.groups for _ in range(group.count)]  # as the caption says them
    assert scene_plan.plan_for_scene(replace(scene, objects=scene.objects[::-1]))[::2] != kinds or len(set(kinds)) == 1


def test_every_plan_token_has_its_id() -> None:
    words = vocabulary.build_image_tokenizer(FLAT)
    ids = [words.token_to_id(word) for word in (*scene_plan.plan_vocabulary(), *KINDS)]
    assert None not in ids and len(set(ids)) == len(ids) == 1 + 10**2 + 13**2 + len(KINDS)
    assert (
        scene_plan.plan_length(words) == scene_plan.PLAN_LENGTH
        and scene_plan.plan_length(vocabulary.build_tokenizer(FLAT.vocabulary(), {})) == 0
    )
    assert (
        scene_plan.parse_plan(
            ["cat", scene_plan.NO_OBJECT, scene_plan.NO_OBJECT, "<small@0,0>", "cat", "<small@12,12>"]
        )[0].x
        == 96
    )


@given(seed=st.integers(0, 2**32 - 1), committed=st.integers(0, scene_plan.PLAN_LENGTH))
def test_cells_of_what_a_plan_has_stand_there(seed: int, committed: int) -> None:
    """Check any number of committed tokens; the rest of the plan and the image are drafted."""
    rng = np.random.default_rng(seed)
    scene = place_objects(EVERYTHING.random_composition(rng), rng)
    words = vocabulary.build_image_tokenizer(EVERYTHING)
    plan, first = [words.token_to_id(word) for word in scene_plan.plan_for_scene(scene)], vocabulary.code_offset(words)
    codes = torch.arange(first + 8) >= first
    slots = scene_plan.PlanGrammar.from_vocabulary(words, codes)
    line = torch.tensor([[5, *plan, *[first] * NUM_CELLS]])  # a prompt of one word
    drafted = line.shape[1] - 1 - committed
    known, depth = torch.arange(line.shape[1])[None] <= committed, torch.arange(drafted + 1)[None]
    paths = line[:, None, committed:].expand(-1, drafted + 1, -1)
    history = GenerationContext(
        line.where(known, 0),
        known.sum(1),
        paths,
        depth,
        committed + depth,
        torch.tensor([scene_plan.PLAN_LENGTH + NUM_CELLS]),
    )
    found = torch.full((scene_plan.PLAN_LENGTH + NUM_CELLS,), -1)
    found[committed:] = slots(history)[0, :-1]
    assert found[committed : scene_plan.PLAN_LENGTH].tolist() == [
        place % 2 for place in range(committed, scene_plan.PLAN_LENGTH)
    ]
    stands = torch.from_numpy(object_cells(scene.objects)).flatten()
    kinds = torch.full((NUM_CELLS,), scene_plan.BACKGROUND)
    for thing in scene.objects:
        kinds[torch.from_numpy(object_cells([thing])).flatten()] = scene_plan.FIRST_OBJECT + list(KINDS).index(
            thing.kind
        )
    assert torch.equal(found[scene_plan.PLAN_LENGTH :], kinds) and torch.equal(kinds >= scene_plan.FIRST_OBJECT, stands)


@torch.inference_mode()
def test_trees_match_with_and_without_precomputed_states() -> None:
    """Check states within the plan and behind it, in rows of different progress."""
    pipe = load("tiny-image")
    drafts = []
    for planned in (pipe.sampler.num_prefix_tokens_read, None):
        # the budget of nodes learns from run to run
        sampler = replace(pipe.sampler, num_prefix_tokens_read=planned)
        method = replace(pipe.method(parse("eagle2")), sampler=sampler, node_budget=None)
        prompts = [
            replace(pipe.build_prompt(caption, 5, pipe.sampling_params()), max_new_tokens=40) for caption in CAPTIONS
        ]
        batch = start_batch(method, prompts[:1])
        decode_step(method, batch)
        add_requests(method, batch, prompts[1:], [1, 2])
        trees = []
        while len(batch):
            draft = method.drafter.draft(batch.state, batch.drafter_state, method.sampler, batch.noise)
            trees.append((draft.tokens, draft.parents))
            decode_step(method, batch)
        drafts.append(trees)
    assert len(drafts[0]) == len(drafts[1]) and pipe.sampler.num_prefix_tokens_read == scene_plan.PLAN_LENGTH
    for mine, theirs in zip(*drafts, strict=True):
        assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1])


def proper(pipe: ImagePipeline, committed: torch.Tensor) -> bool:
    """Return whether a row has kinds and placements in turn, and then codes that follow the plan."""
    words = [
        pipe.family.emoji_vocabulary.tokenizer.id_to_token(int(index)) for index in committed[: scene_plan.PLAN_LENGTH]
    ]
    kinds, where = {scene_plan.NO_OBJECT, *KINDS}, {scene_plan.NO_OBJECT, *scene_plan.placement_tokens()}
    planned = set(words[::2]) <= kinds and set(words[1::2]) <= where
    codes = committed[scene_plan.PLAN_LENGTH :] - pipe.family.first_code_id
    stands: list[set[str]] = [set() for _ in range(NUM_CELLS)]
    for thing in scene_plan.parse_plan(words):
        for cell in object_cells([thing]).ravel().nonzero()[0]:
            stands[cell].add(thing.kind)
    lines = {(): 0} | {(kind,): 1 + index for index, kind in enumerate(KINDS)}
    shown = [len(found) > 1 or bool(SHOWS[lines[*found], code]) for found, code in zip(stands, codes, strict=True)]
    return planned and bool((codes >= 0).all()) and all(shown)


@pytest.mark.parametrize(("temperature", "guidance"), first(2, [(0.0, 1.0), (1.0, 2.5), (1.0, 1.0)]))
@pytest.mark.parametrize("min_p", [pytest.param(0.0, marks=pytest.mark.thorough), 0.1])
def test_plan_and_image_match_plain_decoding(
    pipe: ImagePipeline, temperature: float, guidance: float, min_p: float
) -> None:
    sampling = SamplingParams(temperature=temperature, guidance_scale=guidance, min_p=min_p)
    prompts = pipe.build_prompts(CAPTIONS, sampling=sampling)
    plain, _ = run(pipe.method(parse("ar"), guidance != 1), prompts)
    assert all(proper(pipe, row) and len(row) == scene_plan.PLAN_LENGTH + 256 for row in plain)
    for name in IDENTICAL:
        drawn, _ = run(pipe.method(parse(name), guidance != 1), prompts)
        assert all_equal(drawn, plain), name


@pytest.mark.parametrize("name", OTHERS)
def test_no_method_puts_anything_else_in_a_plan(pipe: ImagePipeline, name: str) -> None:
    rows, _ = run(pipe.method(parse(name), False), pipe.build_prompts(CAPTIONS, sampling=SamplingParams()))
    assert all(proper(pipe, row) and len(row) == scene_plan.PLAN_LENGTH + 256 for row in rows)


def test_without_a_table_codes_show_anything() -> None:
    words = vocabulary.build_image_tokenizer(EVERYTHING)
    codes = torch.arange(vocabulary.code_offset(words) + 64) >= vocabulary.code_offset(words)
    constrained, unconstrained = (
        scene_plan.PlanGrammar.from_vocabulary(words, codes, table).allowed_tokens for table in (SHOWS, None)
    )
    assert torch.equal(constrained[scene_plan.BACKGROUND, codes], SHOWS[0]) and torch.equal(
        constrained[scene_plan.FIRST_OBJECT :, codes], SHOWS[1:]
    )
    assert (
        torch.equal(constrained[: scene_plan.BACKGROUND], unconstrained[: scene_plan.BACKGROUND])
        and not constrained[:, ~codes][scene_plan.BACKGROUND :].any()
    )
    assert torch.equal(
        unconstrained[scene_plan.BACKGROUND :], codes.expand(len(unconstrained) - scene_plan.BACKGROUND, -1)
    )


def test_a_table_of_other_kinds_is_refused(tmp_path: Path) -> None:
    assert code_contents.load(tmp_path, 64) is None
    code_contents.save(SHOWS, tmp_path)
    assert torch.equal(code_contents.load(tmp_path, 64), SHOWS)
    for wrong in (SHOWS[1:], SHOWS & False, SHOWS[:, :-1]):
        code_contents.save(wrong, tmp_path)
        with pytest.raises(polydraft.WeightsError, match="install the model again"):
            code_contents.load(tmp_path, 64)


def test_rows_of_several_begin_behind_the_plan(pipe: ImagePipeline) -> None:
    prompts = pipe.build_prompts(CAPTIONS, sampling=SamplingParams())
    plain, _ = run(pipe.method(parse("ar")), prompts)
    whole, _ = run(pipe.method(parse("pjd(lead=1024)")), prompts)  # no row begins before the one above has ended
    assert all_equal(whole, plain)


def test_results_have_codes_alone(pipe: ImagePipeline, tmp_path: Path) -> None:
    drawn = pipe(CAPTIONS, seed=3)
    assert drawn.tokens.shape == (3, 256) and (drawn.tokens >= 0).all() and (drawn.tokens < 64).all()
    assert drawn.tokens.equal(pipe(CAPTIONS, seed=3, speculative=False).tokens)
    assert drawn.stats.tokens == 3 * (256 + scene_plan.PLAN_LENGTH) and (drawn.passes > 0).all()
    assert drawn.save(tmp_path / "x.png").is_file()
    with pytest.raises(polydraft.InvalidArgument, match="size=64x64 is not possible"):
        pipe(CAPTIONS[0], size="64x64")
