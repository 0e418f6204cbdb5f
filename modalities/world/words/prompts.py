"""Understands prompts of the emoji world as people write them, and says in the grammar's words what can be drawn.

    found = understand("Please draw me a photo of TWO blue 🐸 in the rain!", tuple(BACKGROUNDS))
    found.caption      # "two frogs on a blue background", a caption as models were trained on
    found.ignored      # ("blue", "rain"), what the caption leaves out

Wordings of the grammar are kept: a caption of `captions.describe` is understood as itself, and a phrase around it
("show me a picture of …") changes nothing. What a prompt leaves open is chosen: the ground is the world's first, two
kinds of things stand side by side. What the world has no picture of is left out and told: colours of things, more than
three things or two kinds, other things and emoji, adjectives, and what joins two things whose places were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import MIRROR
from polydraft.modalities.world.words.captions import COUNTS, named, with_article
from polydraft.modalities.world.words.parsing import (
    ARTICLES,
    KIND_OF,
    MAX_OBJECTS,
    NUMBERS,
    RELATION_OF,
    SIZE_OF,
    background_indices,
    known_words,
    setting_of,
)
from polydraft.modalities.world.words.tokens import Token, tokens_of

# Words that frame what is drawn, or are true of every picture.
FRAMING = frozenset(
    """a an the please kindly hello hi hey thanks thank draw paint make create generate produce render show give display
    depict me us my i we you your can could would will shall should must may might do does want wants need like love to
    see have get let image images picture pictures pic pics photo photos photograph photographs drawing illustration
    scene emoji emojis shows showing depicting depicts displaying containing contains featuring features includes
    including consisting of with that this these those there here where which who whose is are was were be been being
    has having stands standing stand placed located positioned situated put place set in on at by to from into as for
    against and it its they them their he him his she her both together each other only just exactly background colour
    colours color colors coloured colored plain solid slice piece bunch some hand side""".split()  # noqa: SIM905
)
MANY = frozenset(
    """four five six seven eight nine ten eleven twelve twenty fifty hundred hundreds thousand thousands million
    millions dozen dozens many lots""".split()  # noqa: SIM905
)
DENIALS = ("no", "zero", "0", "without")
COPULAS = ("is", "are", "be", "being", "was", "were")
PRONOUNS = ("it", "its", "them", "their", "him", "his", "her")
SIDES = {"left": "left", "right": "right", "top": "above", "bottom": "below"}  # relations that may be places
LEADING = (*ARTICLES, "on", "in", "at", "by", "with", "against", "before", "of", "front")  # to a ground
JOINING = ("and", "with", "on", "in", "by", "at", "into", "to")  # two things, and frames elsewhere
SKIPPED = ("a", "an", "the", "of", "to", "in")  # between a colour and what calls it a background


@dataclass(frozen=True)
class Understood:
    """What of a prompt is drawn."""

    caption: str  # in the grammar's words; empty if the prompt names no thing that the world has
    ignored: tuple[str, ...]  # words and emoji that the caption leaves out, as written, in lower case


@dataclass(frozen=True)
class Ground:
    """What a scene stands on."""

    behind: str  # its words behind those for the scene
    before: str  # and before them
    index: int | None = None  # of the token that names it; None if it was chosen

    def around(self, scene: str, index: int) -> str:
        """Return the caption of a scene whose first token is at `index`."""
        first = self.index is not None and self.index < index
        return f"{self.before} {scene}" if first else f"{scene} {self.behind}"

    @staticmethod
    def of_colour(name: str, index: int | None = None, preposition: str = "on") -> Ground:
        return Ground(f"{preposition} {with_article(f'a {name}')} background", f"{name} background with", index)


@dataclass
class Modifiers:
    """What was read since the last thing, and may belong to the next."""

    numbers: list[Token] = field(default_factory=list)
    sizes: list[Token] = field(default_factory=list)
    denials: list[Token] = field(default_factory=list)
    single: bool = False  # "a"
    definite: bool = False  # "the"
    alternative: bool = False  # "or"

    def add(self, token: Token) -> None:
        self.single |= token.word in ("a", "an")
        self.definite |= token.word == "the"
        self.alternative |= token.word == "or"
        if token.word in DENIALS:
            self.denials.append(token)
        elif token.word in SIZE_OF:
            self.sizes.append(token)
        elif token.word not in ARTICLES and amount(token.word) is not None:
            self.numbers.append(token)

    def count(self, thing: Token) -> int:
        """Return how many of `thing` are meant."""
        if self.numbers:
            return max(amount(token.word) or 0 for token in self.numbers)
        return 1 if self.single or thing.word == KIND_OF[thing.word] else 2


@dataclass
class Things:
    """All things of one kind: where the prompt names them, how many it asks for, and what says so."""

    kind: str
    mentions: list[int]
    count: int
    numbers: list[Token]
    sizes: list[Token]


Standing = tuple[Things, str, Things]  # which things, in which relation, to which


def understand(prompt: str, backgrounds: Sequence[str]) -> Understood:
    """Return what a world with these backgrounds can draw of a prompt."""
    settings = tuple(name for name in backgrounds if name in SETTINGS)
    return Reader(tokens_of(prompt, settings), backgrounds, settings).understood()


def amount(word: str) -> int | None:
    """Return a number as far as a scene can hold it, one more for all that it cannot; None for other words."""
    if word in MANY or (word.isdecimal() and word not in DENIALS):
        return MAX_OBJECTS + 1
    return NUMBERS.get(word)


class Reader:
    """A prompt on its way to a caption: the ground first, then the things, then how they stand."""

    def __init__(self, tokens: list[Token], backgrounds: Sequence[str], settings: tuple[str, ...]) -> None:
        self.tokens, self.backgrounds, self.settings = tokens, backgrounds, settings
        self.missed: set[int] = set()  # framing words that mean something here which the caption does not say

    def understood(self) -> Understood:
        ground, things = self.ground(), self.things()[:2]
        if not things:
            return Understood("", self.ignored())
        caption = ground.around(self.scene(things), things[0].mentions[0])
        return Understood(caption, self.ignored())

    def ignored(self) -> tuple[str, ...]:
        said = (
            index in self.missed or not (token.used or token.word in FRAMING) for index, token in enumerate(self.tokens)
        )
        return tuple(token.written for token, told in zip(self.tokens, said, strict=True) if told)

    def word(self, index: int) -> str:
        return self.tokens[index].word if 0 <= index < len(self.tokens) else ""

    def ground(self) -> Ground:
        """Return what is called the background, else a setting, else the world's first ground."""
        grammar = known_words(self.settings)
        known = [index for index, token in enumerate(self.tokens) if token.word in grammar and not token.emoji]
        words = [self.word(index) for index in known]
        setting, phrase = setting_of(words, self.settings)
        if (setting is None or "background" in words) and (colour := self.colour(known)):
            return colour
        if setting is not None:
            self.use_ground([known[index] for index in phrase])
            said = wording(setting, [words[index] for index in phrase])
            return Ground(said, said, known[phrase.start])
        first = self.backgrounds[0]
        return Ground(wording(first, []), "") if first in SETTINGS else Ground.of_colour(first)

    def colour(self, known: list[int]) -> Ground | None:
        """Return the colour that is called the background, of several the first."""
        indices = [index for index in known if self.word(index) not in SKIPPED]
        for found in background_indices([self.word(index) for index in indices]):
            index = indices[found]
            if self.word(index) in self.backgrounds:
                preposition = "against" if "against" in (self.word(index - 1), self.word(index - 2)) else "on"
                self.use_ground([index])
                return Ground.of_colour(self.word(index), index, preposition)
        return None

    def use_ground(self, indices: list[int]) -> None:
        """Mark what names the ground, and what leads to it."""
        first = indices[0]
        while self.word(first - 1) in LEADING:
            first -= 1
        for index in [*range(first, indices[0]), *indices]:
            self.tokens[index].used = True

    def things(self) -> list[Things]:
        """Return the kinds that are named, in order."""
        found: dict[str, Things] = {}
        modifiers = Modifiers()
        for index, token in enumerate(self.tokens):
            if token.used or (token.word in RELATION_OF and not token.emoji):
                modifiers = Modifiers()
            elif token.word in KIND_OF:
                self.name(found, modifiers, index)
                modifiers = Modifiers()
            elif token.word in SIZE_OF and found and self.word(index - 1) in COPULAS and not self.is_kind(index + 1):
                describe(list(found.values())[-1], [token])  # "the frogs are small"
            else:
                modifiers.add(token)
        return list(found.values())

    def is_kind(self, index: int) -> bool:
        return self.word(index) in KIND_OF

    def name(self, found: dict[str, Things], modifiers: Modifiers, index: int) -> None:
        """Add the thing at `index` to those found; one that is denied is drawn nowhere, and so is an alternative."""
        token = self.tokens[index]
        kind = KIND_OF[token.word]
        if modifiers.denials:
            for said in (token, *modifiers.denials):
                said.used = True
        elif modifiers.alternative and found:
            return
        elif kind not in found:
            found[kind] = Things(kind, [index], modifiers.count(token), modifiers.numbers, [])
            describe(found[kind], modifiers.sizes)
        else:
            known = found[kind]
            repeated = token.emoji and self.tokens[index - 1].emoji and index - 1 in known.mentions
            if not (modifiers.definite or (repeated and known.numbers)):  # "the cat" is the one that there is
                known.count += modifiers.count(token)
            known.mentions.append(index)
            known.numbers += modifiers.numbers
            describe(known, modifiers.sizes)

    def scene(self, things: list[Things]) -> str:
        """Return the words for one kind, or for two and how they stand."""
        counts = fewer([thing.count for thing in things])
        said = {thing.kind: self.phrase(thing, count) for thing, count in zip(things, counts, strict=True)}
        if len(things) == 1:
            return said[things[0].kind]
        first, relation, second = self.relation(things) or self.side_by_side(things)
        return f"{said[first.kind]} {relation} {said[second.kind]}"

    def phrase(self, things: Things, count: int) -> str:
        """Return "two small frogs"; a number that was too large is told."""
        fits = count == things.count
        for token in [*(self.tokens[index] for index in things.mentions), *things.sizes, *things.numbers * fits]:
            token.used = True
        if not fits and not things.numbers:  # "cats and dogs", and emoji
            self.missed.update(things.mentions[count:] or things.mentions)
        number = next((token.word for token in things.numbers if token.word in COUNTS[count]), COUNTS[count][0])
        size = things.sizes[0].word if things.sizes else ""
        return named(number, size, things.kind, count)

    def relation(self, things: list[Things]) -> Standing | None:
        """Return what is said of how two kinds stand, of several things the first; what agrees with it is used."""
        found: Standing | None = None
        settled: set[tuple[str, str]] = set()
        for index, token in enumerate(self.tokens):
            if token.used or token.emoji or (stands := self.standing(index, things)) is None:
                continue
            first, relation, second = stands
            if found is None:
                found = first, self.wording_at(index, relation), second
                settled = {(first.kind, relation), (second.kind, MIRROR[relation])}
            token.used = (first.kind, relation) in settled
        return found

    def standing(self, index: int, things: list[Things]) -> Standing | None:
        """Return what the word at `index` says of how two kinds stand, if it does."""
        relation = RELATION_OF.get(self.word(index)) or SIDES.get(self.word(index))
        if relation is None:
            return None
        places = sorted((place, order) for order, thing in enumerate(things) for place in thing.mentions)
        before = [things[order] for place, order in places if place < index]
        behind = [things[order] for place, order in places if place > index]
        object_at = next(at for at in range(index + 1, len(self.tokens) + 1) if self.word(at) not in ("hand", "side"))
        related = self.word(index) not in SIDES or self.word(object_at) == "of"
        object_at += self.word(object_at) == "of"
        if self.word(object_at) in PRONOUNS or (not related and self.word(index - 1) in PRONOUNS):
            about = behind[:1] if len(before) == 1 else before[-1:]  # "above it a star", "a dog to its left"
        elif related:
            about = before[-1:] or [thing for thing in behind if thing is not behind[0]][:1]  # "above a dog, a cat"
            if not behind or behind[0] in about:
                return None
        elif "the" in (self.word(index - 1), self.word(index - 2)):
            # "a cat on the left, a dog on the right" and "on the left a cat, on the right a dog"
            about = behind[:1] if self.begins_with_side(places[0][0]) else before[-1:]
        else:
            return None
        others = [thing for thing in things if thing not in about]
        return (about[0], relation, others[0]) if about and others else None

    def begins_with_side(self, thing: int) -> bool:
        """Return whether a side is named before the first thing."""
        return any(token.word in SIDES for token in self.tokens[:thing])

    def wording_at(self, index: int, relation: str) -> str:
        """Return a relation as the prompt words it, where that is a wording of the grammar."""
        if self.word(index) not in SIDES:
            return self.word(index)
        if relation not in ("left", "right"):
            return relation
        short = self.word(index + 1) == "of" and self.word(index - 1) != "the"
        return f"{relation} of" if short else f"to the {relation} of"

    def side_by_side(self, things: list[Things]) -> Standing:
        """Choose how two kinds stand; the words that join them do not say it, and are told."""
        between = range(things[0].mentions[0] + 1, things[1].mentions[0])
        joining = [index for index in between if self.word(index) in JOINING and not self.tokens[index].used]
        self.missed.update(joining)
        on = any(self.word(index) == "on" for index in joining)
        return things[0], "above" if on else "to the left of", things[1]


def describe(things: Things, sizes: list[Token]) -> None:
    """Add sizes that agree with those already said of things; others are told."""
    for token in sizes:
        if not things.sizes or SIZE_OF[token.word] == SIZE_OF[things.sizes[0].word]:
            things.sizes.append(token)


def fewer(counts: list[int]) -> list[int]:
    """Return counts of one kind or two as far as a scene holds them, at least one of each."""
    kept: list[int] = []
    for left, count in zip(range(len(counts) - 1, -1, -1), counts, strict=True):
        kept.append(min(count, MAX_OBJECTS - sum(kept) - left))
    return kept


def wording(setting: str, said: list[str]) -> str:
    """Return the words of the grammar for a setting that are most like those of the prompt."""
    wordings = SETTINGS[setting].wordings
    if " ".join(said) in wordings:
        return " ".join(said)
    return max(wordings, key=lambda words: len({*words.split()} & {*said} - {*ARTICLES}))
