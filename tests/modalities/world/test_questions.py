"""Generated descriptions and answers are correct for their scene and wrong for a changed one, in any wording."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS
from polydraft.modalities.world.scene import (
    BACKGROUNDS,
    MIRRORED,
    RELATIONS,
    Composition,
    ObjectGroup,
    PlacedObject,
    Scene,
    place_objects,
    random_composition,
)
from polydraft.modalities.world.words import descriptions
from polydraft.modalities.world.words.answers import Truth, parse_claims
from polydraft.modalities.world.words.descriptions import template_values, with_scene_sizes, write_description
from polydraft.modalities.world.words.questions import QUESTION_WRITERS, Question, generate_questions
from polydraft.modalities.world.words.scoring import grade_description

seeds = st.integers(0, 2**32 - 1)
PANDAS = Composition("blue", (ObjectGroup("panda", 2, "small"), ObjectGroup("rocket", 1, "large")), "left")
FROG = Composition("navy", (ObjectGroup("frog", 1, "small"),))
PARTS = {"background": {"background"}, "count": {"counts"}, "size": {"sizes"}, "kind": {"objects", "counts"},
         "relation": {"relation"}}  # fmt: skip


def sample(seed: int, held_out: bool = True) -> tuple[Composition, Scene, np.random.Generator]:
    rng = np.random.default_rng(seed)
    composition = random_composition(rng, held_out)
    scene = place_objects(composition, rng)
    return with_scene_sizes(composition, scene), scene, rng


def changed(composition: Composition, rng: np.random.Generator) -> dict[str, Composition]:
    """Return variants of a composition with one change each, by what is changed."""
    groups = composition.groups
    which = int(rng.integers(len(groups)))

    def with_group(**change: object) -> Composition:
        return replace(composition, groups=(*groups[:which], replace(groups[which], **change), *groups[which + 1 :]))

    stranger = str(rng.choice(sorted(set(KINDS) - {group.kind for group in groups})))
    found = {
        "background": replace(
            composition, background=str(rng.choice(sorted(set(BACKGROUNDS) - {composition.background})))
        ),
        "count": with_group(count=groups[which].count % 3 + 1),
        "size": with_group(size=next(size for size in GLYPH_SIZES if size != groups[which].size)),
        "kind": with_group(kind=stranger),
    }
    if composition.relation is not None:
        found["relation"] = replace(composition, relation=MIRRORED[composition.relation])
    return found


@settings(max_examples=60)
@given(seeds, st.booleans())
def test_descriptions_state_all_facts_and_no_others(seed: int, held_out: bool) -> None:
    composition, scene, rng = sample(seed, held_out)
    assert composition.is_held_out == held_out
    text = write_description(composition, rng)
    assert grade_description(text, composition).ok and grade_description(text, composition, scene).ok, text
    for what, other in changed(composition, rng).items():
        theirs = grade_description(write_description(other, rng), composition, scene)
        assert not theirs.true and not grade_description(text, other).ok, what
        wrong = {part for part, right in vars(theirs).items() if not right} - {"true"}
        assert wrong == PARTS[what] or what == "kind" and wrong >= PARTS[what], (what, wrong)


@settings(max_examples=60)
@given(seeds)
def test_answers_are_correct_for_their_scene_only(seed: int) -> None:
    composition, scene, rng = sample(seed)
    for question in generate_questions(composition, np.random.default_rng(seed), scene):
        assert question.is_correct(question.answer), question
        assert not question.is_correct("") and not question.is_correct("It is hard to say.")
    asked = {"background": ["background"], "count": ["what"], "kind": ["what"], "relation": ["where", "who"]}
    for what, other in changed(composition, rng).items():
        for topic in asked.get(what, []):
            ours, theirs = (ask(topic, one, seed) for one in (composition, other))
            if ours is not None and theirs is not None:
                assert not ours.is_correct(theirs.answer), (what, ours, theirs.answer)
    group = composition.groups[0]
    for count in {1, 2, 3} - {group.count}:
        question = Question("count", "", "", Truth.from_composition(composition, scene), group.kind)
        other = replace(composition, groups=(replace(group, count=count),), relation=None)
        assert not question.is_correct(ask("count", other, 0).answer)  # type: ignore[union-attr]


def ask(topic: str, composition: Composition, seed: int) -> Question | None:
    return QUESTION_WRITERS[topic](composition, Truth.from_composition(composition), np.random.default_rng(seed))


def test_every_wording_is_correct_and_long_enough() -> None:
    """This covers all templates with every relation and count; texts have 40 to 120 words and marks."""
    rng = np.random.default_rng(0)
    two = [
        Composition("grey", (ObjectGroup("bee", first, "large"), ObjectGroup("fish", second, "small")), relation)
        for relation in RELATIONS
        for first, second in ((1, 1), (2, 1), (1, 2))
    ]
    one = [Composition("orange", (ObjectGroup("grapes", count, "small"),)) for count in (1, 2, 3)]
    for composition in two + one:
        text = descriptions.RELATION_SENTENCES if composition.relation else descriptions.SINGLE_GROUP_SENTENCES
        whole = [
            *product(descriptions.OPENINGS, text, descriptions.BACKGROUND_SENTENCES),
            *product(descriptions.BACKGROUND_OPENINGS, text),
        ]
        for sentences in whole if composition in (two[0], one[0]) else whole[::7]:
            text = " ".join(sentences).format(**template_values(composition, rng))
            assert grade_description(text, composition).ok, text
            assert 40 <= len(re.findall(r"\w+|[^\w\s]", text)) <= 120
            assert text[0].isupper() and text.endswith(".")


def test_questions_are_reproducible_by_seed() -> None:
    composition, scene, _ = sample(3)
    first, again, other = (generate_questions(composition, np.random.default_rng(seed), scene) for seed in (1, 1, 2))
    assert first == again != other
    assert len({write_description(composition, np.random.default_rng(seed)) for seed in range(20)}) > 10


def about(topic: str, kind: str = "", composition: Composition = PANDAS) -> Question:
    return Question(topic, "", "", Truth.from_composition(composition), kind)


JUDGED = [
    # topic, kind asked about, answer, verdict; two small pandas left of a large rocket on blue
    ("what", "", "two pandas and a rocket", True),
    ("what", "", "I see pandas next to a big rocket.", True),
    ("what", "", "A rocket, and 2 tiny pandas!", True),
    ("what", "", "Two pandas.", False),
    ("what", "", "Two pandas, a rocket and a bee.", False),
    ("what", "", "A panda and a rocket.", False),
    ("what", "", "Two large pandas and a rocket.", False),
    ("what", "", "There are two pandas but no rocket.", False),
    ("what", "", "Two pandas and a rocket, but no bee and nothing else.", True),
    ("where", "panda", "To the left of the rocket.", True),
    ("where", "panda", "Left.", True),
    ("where", "panda", "They are on the left.", True),
    ("where", "panda", "The rocket is to the right of the pandas.", True),
    ("where", "panda", "They have the rocket on their right.", True),
    ("where", "panda", "On the left are two pandas and on the right a rocket.", True),
    ("where", "panda", "Left of the rocket stand the pandas.", True),
    ("where", "panda", "Above the rocket.", False),
    ("where", "panda", "The pandas are to the right of the rocket.", False),
    ("where", "panda", "To the left of the rocket is a bee.", False),
    ("where", "panda", "Not to the left of the rocket.", False),
    ("where", "panda", "All over the picture.", False),
    ("where", "panda", "On a blue background.", False),
    ("where", "rocket", "To the right of the pandas.", True),
    ("where", "rocket", "On the left.", False),
    ("who", "rocket", "The pandas.", True),
    ("who", "rocket", "Two pandas are left of it.", True),
    ("who", "rocket", "A panda and a rocket.", False),
    ("who", "rocket", "The rocket.", False),
    ("who", "rocket", "A bee is left of the rocket.", False),
    ("count", "panda", "2", True),
    ("count", "panda", "There are a total of two.", True),
    ("count", "panda", "Two small pandas and one rocket.", True),
    ("count", "panda", "three", False),
    ("count", "panda", "There are 12 pandas.", False),
    ("count", "panda", "Two or three.", False),
    ("count", "panda", "There are pandas.", False),
    ("count", "panda", "There are no pandas.", False),
    ("count", "panda", "There are not two pandas.", False),
    ("count", "rocket", "Just one.", True),
    ("count", "rocket", "There is a rocket.", True),
    ("count", "rocket", "Two.", False),
    ("count", "", "Three objects.", True),
    ("count", "", "Two pandas and one rocket.", True),
    ("count", "", "Two objects.", False),
    ("count", "", "Two pandas.", False),
    ("background", "", "Blue", True),
    ("background", "", "it's blue!", True),
    ("background", "", "The pandas stand on a plain blue background.", True),
    ("background", "", "It is not blue.", False),
    ("background", "", "It is navy.", False),
    ("background", "", "Dark blue.", False),
    ("background", "", "Blue or pink.", False),
    ("background", "", "A blue panda on a pink background.", False),
    ("exists", "panda", "Yes.", True),
    ("exists", "panda", "Yes, two pandas are there.", True),
    ("exists", "panda", "There are two pandas.", True),
    ("exists", "panda", "No.", False),
    ("exists", "panda", "Yes, there are three pandas.", False),
    ("exists", "panda", "Yes, there is no panda.", False),
    ("exists", "panda", "No, there are two pandas.", False),
    ("exists", "panda", "Perhaps.", False),
    ("exists", "bee", "No", True),
    ("exists", "bee", "No bee is present.", True),
    ("exists", "bee", "There isn't a bee, there are two pandas.", True),
    ("exists", "bee", "I can't see any bees.", True),
    ("exists", "bee", "Yes, a bee.", False),
    ("exists", "bee", "Yes.", False),
    ("exists", "bee", "No, there is a bee.", False),
    ("exists", "bee", "No, but there is a frog.", False),
    ("exists", "bee", "There is a bee.", False),
]  # fmt: skip


@pytest.mark.parametrize(("topic", "kind", "answer", "verdict"), JUDGED)
def test_free_answers_are_graded(topic: str, kind: str, answer: str, verdict: bool) -> None:
    assert about(topic, kind).is_correct(answer) is verdict, parse_claims(answer)


def test_colour_synonyms_are_accepted() -> None:
    assert about("background", composition=FROG).is_correct("It is dark blue.")
    assert about("background", composition=FROG).is_correct("Navy blue.")
    assert not about("background", composition=FROG).is_correct("Blue.")
    assert about("background", composition=replace(FROG, background="grey")).is_correct("The background is gray.")


def test_visible_relations_are_true() -> None:
    """The cat is above the dog and also to its left, which the image shows and the caption does not state."""
    composition = Composition("pink", (ObjectGroup("cat"), ObjectGroup("dog")), "above")
    scene = Scene("pink", (PlacedObject("cat", "small", 0, 0), PlacedObject("dog", "large", 64, 64)))
    seen, read = (Question("where", "", "", truth, "cat") for truth in
                  (Truth.from_composition(composition, scene), Truth.from_composition(composition)))  # fmt: skip
    assert seen.is_correct("Left of the dog.") and not read.is_correct("Left of the dog.")
    assert not seen.is_correct("Right of the dog.") and seen.is_correct("Over the dog.")
    assert not grade_description("A large cat is above a dog on a pink background.", composition, scene).ok


DESCRIBED = [
    ("Two small pandas stand to the left of one large rocket. The background is blue.", True),
    ("There are two pandas and a rocket on blue. The pandas are small, the rocket is large and right of them.", True),
    ("Two small pandas and one large rocket on a blue background.", False),  # standing how?
    ("Two small pandas are left of one large rocket.", False),  # on which background?
    ("Two pandas are left of a large rocket on a blue background.", False),  # how large?
    ("Small pandas are left of a large rocket on a blue background.", False),  # how many?
    ("Two small pandas are left of a large rocket and a bee on a blue background.", False),
    ("Two small pandas are left of a large rocket on a blue background. The rocket is small.", False),
    ("Two small pandas are left of a large rocket on a blue background. The rocket is above the pandas.", False),
    ("", False),
]


@pytest.mark.parametrize(("text", "verdict"), DESCRIBED)
def test_free_descriptions_are_graded(text: str, verdict: bool) -> None:
    assert grade_description(text, PANDAS).ok is verdict, parse_claims(text)


@settings(max_examples=60)
@given(st.text())
def test_any_text_is_parsed(text: str) -> None:
    parse_claims(text)
    assert not grade_description(text, PANDAS).ok
