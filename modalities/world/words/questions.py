"""Questions about emoji scenes with short full answers, and who is right about them.

    for question in questions(composition, np.random.default_rng(0), scene):
        question.text, question.answer, question.right("There are two frogs.")

An answer is right if it says what was asked, in whatever words, and nothing that is false. With the scene, relations
that the composition does not state but the picture shows are true as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from polydraft.modalities.world.glyphs import KINDS
from polydraft.modalities.world.scene import MIRROR, Composition, Group, Scene
from polydraft.modalities.world.words.answers import Claims, Truth, claims
from polydraft.modalities.world.words.captions import RELATION_WORDS, with_article
from polydraft.modalities.world.words.descriptions import be, listed, noun, pick, the, upper

NUMBER_WORDS = ("no", "one", "two", "three")


@dataclass(frozen=True)
class Question:
    """A question with a model answer. about: the kind it asks for or from, "" if it asks about everything."""

    topic: str
    text: str
    answer: str
    truth: Truth
    about: str = ""

    def right(self, answer: str) -> bool:
        """Whether `answer` says what was asked and nothing false."""
        said = claims(answer)
        return said.true_of(self.truth, self.about or None) and RIGHT[self.topic](self, said)


def questions(composition: Composition, rng: np.random.Generator, scene: Scene | None = None) -> list[Question]:
    """One question of every topic that fits the composition; `rng` picks what is asked and the wording."""
    truth = Truth.of(composition, scene)
    return [found for ask in TOPICS.values() if (found := ask(composition, truth, rng)) is not None]


def ask_what(composition: Composition, truth: Truth, rng: np.random.Generator) -> Question:
    text = pick(("What is in the picture?", "Which objects can you see?", "What does the picture show?"), rng)
    things = listed(composition, rng)
    answers = ("The picture shows {}.", f"There {be(composition.groups[0])} {{}}.", "I can see {}.")
    return Question("what", text, pick(answers, rng).format(things), truth)


def ask_where(composition: Composition, truth: Truth, rng: np.random.Generator) -> Question | None:
    """Where one kind stands to the other."""
    if composition.relation is None:
        return None
    about, other, relation = turned(composition, rng)
    words = f"{the(about)} {be(about)}", pick(RELATION_WORDS[relation], rng), the(other)
    texts = (f"Where {be(about)} {the(about)}?", f"Where {be(about)} {the(about)} in relation to {the(other)}?")
    return Question("where", pick(texts, rng), upper(" ".join(words)) + ".", truth, about.kind)


def ask_who(composition: Composition, truth: Truth, rng: np.random.Generator) -> Question | None:
    """Which kind stands so to another."""
    if composition.relation is None:
        return None
    found, about, relation = turned(composition, rng)
    place = f"{pick(RELATION_WORDS[relation], rng)} {the(about)}"
    things = f"{NUMBER_WORDS[found.count]} {noun(found.kind, found.count)}"
    answers = (f"{upper(things)} {be(found)} {place}.", f"There {be(found)} {things} {place}.")
    return Question("who", f"What is {place}?", pick(answers, rng), truth, about.kind)


def ask_count(composition: Composition, truth: Truth, rng: np.random.Generator) -> Question:
    """How many of one kind, or of everything."""
    groups = composition.groups
    which = int(rng.integers(len(groups) + 1))
    if which == len(groups):
        total = truth.total
        things = "object" if total == 1 else "objects"
        answer = f"There {'is' if total == 1 else 'are'} {NUMBER_WORDS[total]} {things}."
        return Question("count", "How many objects are there in the picture?", answer, truth)
    group = groups[which]
    kinds = noun(group.kind, 2)
    texts = (f"How many {kinds} are there?", f"How many {kinds} can you see?")
    answer = f"There {be(group)} {NUMBER_WORDS[group.count]} {noun(group.kind, group.count)}."
    return Question("count", pick(texts, rng), answer, truth, group.kind)


def ask_background(composition: Composition, truth: Truth, rng: np.random.Generator) -> Question:
    texts = ("What colour is the background?", "Which colour does the background have?")
    answers = (f"The background is {truth.background}.", f"It is {with_article(f'a {truth.background}')} background.")
    return Question("background", pick(texts, rng), pick(answers, rng), truth)


def ask_exists(composition: Composition, truth: Truth, rng: np.random.Generator) -> Question:
    """Whether a kind is there; half of them are."""
    if rng.random() < 0.5:
        group = composition.groups[rng.integers(len(composition.groups))]
        kind, number = group.kind, f"{NUMBER_WORDS[group.count]} {noun(group.kind, group.count)}"
        answer = f"Yes, there {be(group)} {number}."
    else:
        kind = str(rng.choice(sorted(set(KINDS) - set(truth.counts))))
        answer = f"No, there is no {kind}."
    one = with_article(f"a {kind}")
    return Question(
        "exists", pick((f"Is there {one} in the picture?", f"Can you see {one}?"), rng), answer, truth, kind
    )


def turned(composition: Composition, rng: np.random.Generator) -> tuple[Group, Group, str]:
    """The relation as the composition says it, or from the other side."""
    assert composition.relation is not None
    first, second = composition.groups
    if rng.random() < 0.5:
        return first, second, composition.relation
    return second, first, MIRROR[composition.relation]


def plain(said: Claims) -> bool:
    """No "no" to a question that is none of yes or no."""
    return said.polarity is not False and not said.loose


def states_relation(said: Claims) -> bool:
    return any(not relation.denied for relation in said.relations)


def states_background(said: Claims, truth: Truth) -> bool:
    return (truth.background, False) in said.colours


def right_what(question: Question, said: Claims) -> bool:
    return plain(said) and said.kinds == set(question.truth.counts)


def right_where(question: Question, said: Claims) -> bool:
    return plain(said) and states_relation(said)


def right_who(question: Question, said: Claims) -> bool:
    """The other kind is named; the one that was asked from is, if at all, only as what it stands to."""
    named = said.kinds - {question.about} == {question.truth.other(question.about)}
    return plain(said) and named and (states_relation(said) or question.about not in said.kinds)


def right_count(question: Question, said: Claims) -> bool:
    counts, kind = question.truth.counts, question.about
    numbers = {*said.numbers, *(said.counts(kind) if kind else said.totals)}
    if not kind and not numbers and said.kinds == set(counts):  # adding them up is left to the reader
        return plain(said) and all(said.counts(name) for name in counts)
    return plain(said) and numbers == {counts[kind] if kind else question.truth.total}


def right_background(question: Question, said: Claims) -> bool:
    return plain(said) and states_background(said, question.truth)


def right_exists(question: Question, said: Claims) -> bool:
    there = question.about in question.truth.counts
    if said.polarity is not None:
        return said.polarity == there and not (there and said.loose)
    return question.about in {mention.kind for mention in said.mentions} and not said.loose


Ask = Callable[[Composition, Truth, np.random.Generator], Question | None]
TOPICS: dict[str, Ask] = {
    "what": ask_what, "where": ask_where, "who": ask_who, "count": ask_count, "background": ask_background,
    "exists": ask_exists,
}  # fmt: skip
RIGHT: dict[str, Callable[[Question, Claims], bool]] = {
    "what": right_what, "where": right_where, "who": right_who, "count": right_count, "background": right_background,
    "exists": right_exists,
}  # fmt: skip
