"""Questions about emoji scenes with short full answers, and the verification of answers.

    for question in generate_questions(composition, np.random.default_rng(0), scene):
        question.text, question.answer, question.is_correct("There are two frogs.")

An answer is correct if it states what was asked, in whatever words, and nothing that is false. With the scene,
relations that are visible and not stated by the composition are true as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.scene import MIRRORED, Composition, ObjectGroup, Scene
from polydraft.modalities.world.words.answers import Claims, Truth, parse_claims
from polydraft.modalities.world.words.captions import RELATION_WORDS, with_article
from polydraft.modalities.world.words.descriptions import (
    capitalise_first,
    choose,
    definite_phrase,
    join_groups,
    noun_for_count,
    verb_be,
)

NUMBER_WORDS = ("no", "one", "two", "three")


@dataclass(frozen=True)
class Question:
    """Question with a reference answer."""

    topic: str
    text: str
    answer: str
    truth: Truth
    about: str = ""  # the kind that it asks about; empty if it asks about everything

    def is_correct(self, answer: str) -> bool:
        """Return whether an answer states what was asked and nothing false."""
        claims = parse_claims(answer)
        return claims.are_true_of(self.truth, self.about or None) and ANSWER_CHECKS[self.topic](self, claims)


def generate_questions(
    composition: Composition, rng: np.random.Generator, scene: Scene | None = None
) -> list[Question]:
    """Generate one question of every topic that fits the composition.

    Args:
        composition (Composition): the content of the scene.
        rng (np.random.Generator): chooses what is asked, and the wording.
        scene (Scene | None): the scene, whose visible relations are true as well.
    """
    truth = Truth.from_composition(composition, scene)
    return [question for ask in QUESTION_WRITERS.values() if (question := ask(composition, truth, rng)) is not None]


def ask_what(composition: Composition, truth: Truth, rng: np.random.Generator) -> Question:
    """Ask for all objects."""
    text = choose(("What is in the picture?", "Which objects can you see?", "What does the picture show?"), rng)
    objects = join_groups(composition, rng)
    answers = ("The picture shows {}.", f"There {verb_be(composition.groups[0])} {{}}.", "I can see {}.")
    return Question("what", text, choose(answers, rng).format(objects), truth)


def ask_where(composition: Composition, truth: Truth, rng: np.random.Generator) -> Question | None:
    """Ask for the relation of one kind to the other; return None without a relation."""
    if composition.relation is None:
        return None
    about, other, relation = orient_relation(composition, rng)
    subject, reference, verb = definite_phrase(about), definite_phrase(other), verb_be(about)
    words = f"{subject} {verb}", choose(RELATION_WORDS[relation], rng), reference
    texts = (f"Where {verb} {subject}?", f"Where {verb} {subject} in relation to {reference}?")
    return Question("where", choose(texts, rng), capitalise_first(" ".join(words)) + ".", truth, about.kind)


def ask_who(composition: Composition, truth: Truth, rng: np.random.Generator) -> Question | None:
    """Ask for the kind in a relation to the other; return None without a relation."""
    if composition.relation is None:
        return None
    asked_for, about, relation = orient_relation(composition, rng)
    place = f"{choose(RELATION_WORDS[relation], rng)} {definite_phrase(about)}"
    objects = f"{NUMBER_WORDS[asked_for.count]} {noun_for_count(asked_for.kind, asked_for.count)}"
    verb = verb_be(asked_for)
    answers = (f"{capitalise_first(objects)} {verb} {place}.", f"There {verb} {objects} {place}.")
    return Question("who", f"What is {place}?", choose(answers, rng), truth, about.kind)


def ask_count(composition: Composition, truth: Truth, rng: np.random.Generator) -> Question:
    """Ask for the number of objects of one kind, or of all objects."""
    groups = composition.groups
    which = int(rng.integers(len(groups) + 1))
    if which == len(groups):
        total = truth.total
        objects = "object" if total == 1 else "objects"
        answer = f"There {'is' if total == 1 else 'are'} {NUMBER_WORDS[total]} {objects}."
        return Question("count", "How many objects are there in the picture?", answer, truth)
    group = groups[which]
    kinds = noun_for_count(group.kind, 2)
    texts = (f"How many {kinds} are there?", f"How many {kinds} can you see?")
    answer = f"There {verb_be(group)} {NUMBER_WORDS[group.count]} {noun_for_count(group.kind, group.count)}."
    return Question("count", choose(texts, rng), answer, truth, group.kind)


def ask_background(composition: Composition, truth: Truth, rng: np.random.Generator) -> Question:
    """Ask for the colour of the background."""
    texts = ("What colour is the background?", "Which colour does the background have?")
    answers = (f"The background is {truth.background}.", f"It is {with_article(f'a {truth.background}')} background.")
    return Question("background", choose(texts, rng), choose(answers, rng), truth)


def ask_exists(composition: Composition, truth: Truth, rng: np.random.Generator) -> Question:
    """Ask whether there are objects of a kind; for half of the questions there are."""
    if rng.random() < 0.5:
        group = composition.groups[rng.integers(len(composition.groups))]
        kind, number = group.kind, f"{NUMBER_WORDS[group.count]} {noun_for_count(group.kind, group.count)}"
        answer = f"Yes, there {verb_be(group)} {number}."
    else:
        kind = str(rng.choice(sorted(set(KINDS) - set(truth.counts))))
        answer = f"No, there is no {kind}."
    one = with_article(f"a {kind}")
    return Question(
        "exists", choose((f"Is there {one} in the picture?", f"Can you see {one}?"), rng), answer, truth, kind
    )


def orient_relation(composition: Composition, rng: np.random.Generator) -> tuple[ObjectGroup, ObjectGroup, str]:
    """Return the relation as the composition states it, or its mirrored form."""
    assert composition.relation is not None
    first, second = composition.groups
    if rng.random() < 0.5:
        return first, second, composition.relation
    return second, first, MIRRORED[composition.relation]


def has_no_stray_denial(claims: Claims) -> bool:
    """Return whether an answer to a question that is no yes-or-no question has no stray negation."""
    return claims.polarity is not False and not claims.loose


def states_relation(claims: Claims) -> bool:
    """Return whether a text states a relation."""
    return any(not relation.denied for relation in claims.relations)


def states_background(claims: Claims, truth: Truth) -> bool:
    """Return whether a text states the colour of the background."""
    return (truth.background, False) in claims.colours


def is_right_what(question: Question, claims: Claims) -> bool:
    """Check that exactly the kinds of the scene are named."""
    return has_no_stray_denial(claims) and claims.kinds == set(question.truth.counts)


def is_right_where(question: Question, claims: Claims) -> bool:
    """Check that a relation is stated."""
    return has_no_stray_denial(claims) and states_relation(claims)


def is_right_who(question: Question, claims: Claims) -> bool:
    """Check that the other kind is named, and the kind in the question only as the object of the relation."""
    is_named = claims.kinds - {question.about} == {question.truth.other(question.about)}
    return has_no_stray_denial(claims) and is_named and (states_relation(claims) or question.about not in claims.kinds)


def is_right_count(question: Question, claims: Claims) -> bool:
    """Check that the number is stated, or for all objects the number of every kind."""
    counts, kind = question.truth.counts, question.about
    numbers = {*claims.numbers, *(claims.counts(kind) if kind else claims.totals)}
    if not kind and not numbers and claims.kinds == set(counts):  # the counts of all kinds imply the total
        return has_no_stray_denial(claims) and all(claims.counts(name) for name in counts)
    return has_no_stray_denial(claims) and numbers == {counts[kind] if kind else question.truth.total}


def is_right_background(question: Question, claims: Claims) -> bool:
    """Check that the colour of the background is stated."""
    return has_no_stray_denial(claims) and states_background(claims, question.truth)


def is_right_exists(question: Question, claims: Claims) -> bool:
    """Check the yes or no, or that the kind is named."""
    is_there = question.about in question.truth.counts
    if claims.polarity is not None:
        return claims.polarity == is_there and not (is_there and claims.loose)
    return question.about in {mention.kind for mention in claims.mentions} and not claims.loose


Ask = Callable[[Composition, Truth, np.random.Generator], Question | None]
QUESTION_WRITERS: dict[str, Ask] = {
    "what": ask_what, "where": ask_where, "who": ask_who, "count": ask_count, "background": ask_background,
    "exists": ask_exists,
}  # fmt: skip
ANSWER_CHECKS: dict[str, Callable[[Question, Claims], bool]] = {
    "what": is_right_what, "where": is_right_where, "who": is_right_who, "count": is_right_count,
    "background": is_right_background, "exists": is_right_exists,
}  # fmt: skip
