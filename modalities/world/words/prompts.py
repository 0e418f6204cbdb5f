"""Rewrite free prompts as captions of the emoji dataset, and report what is left out.

    rewritten = rewrite_prompt("Please draw me a photo of TWO blue 🐸 in the rain!", tuple(BACKGROUNDS))
    rewritten.caption      # "two frogs on a blue background", a caption as in training
    rewritten.ignored      # ("blue", "rain"), the words that the caption leaves out

Wordings of the grammar are kept: a caption of `captions.write_caption` is rewritten as itself, and a phrase around it
("show me a picture of …") changes nothing. What a prompt leaves open is chosen: the background is the first one, and
two kinds are placed side by side. What scenes cannot show is left out and reported: colours of objects, more than three
objects or two kinds, other objects and emoji, adjectives, and words that join two objects whose relation was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from polydraft.modalities.world.painting.settings import SETTINGS
from polydraft.modalities.world.scene import MIRRORED
from polydraft.modalities.world.words.captions import COUNTS, noun_phrase, with_article
from polydraft.modalities.world.words.parsing import (
    ARTICLES,
    KIND_OF,
    MAX_OBJECTS,
    NUMBERS,
    RELATION_OF,
    SIZE_OF,
    background_indices,
    find_setting,
    known_words,
)
from polydraft.modalities.world.words.tokens import PromptToken, tokenize_prompt

# Words that frame a prompt, or are true of every image.
FRAMING_WORDS = frozenset(
    """a an the please kindly hello hi hey thanks thank draw paint make create generate produce render show give display
    depict me us my i we you your can could would will shall should must may might do does want wants need like love to
    see have get let image images picture pictures pic pics photo photos photograph photographs drawing illustration
    scene emoji emojis shows showing depicting depicts displaying containing contains featuring features includes
    including consisting of with that this these those there here where which who whose is are was were be been being
    has having stands standing stand placed located positioned situated put place set in on at by to from into as for
    against and it its they them their he him his she her both together each other only just exactly background colour
    colours color colors coloured colored plain solid slice piece bunch some hand side""".split()  # noqa: SIM905
)
LARGE_NUMBERS = frozenset(
    """four five six seven eight nine ten eleven twelve twenty fifty hundred hundreds thousand thousands million
    millions dozen dozens many lots""".split()  # noqa: SIM905
)
DENIALS = ("no", "zero", "0", "without")
COPULAS = ("is", "are", "be", "being", "was", "were")
PRONOUNS = ("it", "its", "them", "their", "him", "his", "her")
# Words that lead to a background.
SIDE_RELATIONS = {"left": "left", "right": "right", "top": "above", "bottom": "below"}
LEADING_WORDS = (*ARTICLES, "on", "in", "at", "by", "with", "against", "before", "of", "front")  # before a background
JOINING_WORDS = ("and", "with", "on", "in", "by", "at", "into", "to")  # between two objects; framing words elsewhere
SKIPPED_WORDS = ("a", "an", "the", "of", "to", "in")  # between a colour and the word "background"


@dataclass(frozen=True)
class RewrittenPrompt:
    """Caption of a prompt."""

    caption: str  # in the words of the grammar; empty if the prompt names no kind of the dataset
    ignored: tuple[str, ...]  # words and emoji that the caption leaves out, as written, in lower case


@dataclass(frozen=True)
class BackgroundPhrase:
    """Words of a caption for the background."""

    behind: str  # words after the objects
    before: str  # words before the objects
    index: int | None = None  # of the token that names the background; None if it was chosen

    def surround(self, scene: str, index: int) -> str:
        """Return the caption of objects whose first token is at `index`."""
        first = self.index is not None and self.index < index
        return f"{self.before} {scene}" if first else f"{scene} {self.behind}"

    @staticmethod
    def for_colour(name: str, index: int | None = None, preposition: str = "on") -> BackgroundPhrase:
        """Return the phrase for a colour."""
        behind = f"{preposition} {with_article(f'a {name}')} background"
        return BackgroundPhrase(behind, f"{name} background with", index)


@dataclass
class Modifiers:
    """Words since the last object, which may modify the next one."""

    numbers: list[PromptToken] = field(default_factory=list)
    sizes: list[PromptToken] = field(default_factory=list)
    denials: list[PromptToken] = field(default_factory=list)
    single: bool = False  # "a"
    definite: bool = False  # "the"
    alternative: bool = False  # "or"

    def add(self, token: PromptToken) -> None:
        """Add a token."""
        self.single |= token.word in ("a", "an")
        self.definite |= token.word == "the"
        self.alternative |= token.word == "or"
        if token.word in DENIALS:
            self.denials.append(token)
        elif token.word in SIZE_OF:
            self.sizes.append(token)
        elif token.word not in ARTICLES and parse_amount(token.word) is not None:
            self.numbers.append(token)

    def count(self, noun: PromptToken) -> int:
        """Return the number of objects of a noun."""
        if self.numbers:
            return max(parse_amount(token.word) or 0 for token in self.numbers)
        return 1 if self.single or noun.word == KIND_OF[noun.word] else 2


@dataclass
class KindMentions:
    """Mentions of one kind in a prompt."""

    kind: str
    mentions: list[int]  # indices of its nouns
    count: int  # number of objects
    numbers: list[PromptToken]
    sizes: list[PromptToken]


Arrangement = tuple[KindMentions, str, KindMentions]  # first kind, relation, second kind


def rewrite_prompt(prompt: str, backgrounds: Sequence[str]) -> RewrittenPrompt:
    """Rewrite a free prompt as a caption.

    Args:
        prompt (str): the prompt.
        backgrounds (Sequence[str]): the colours and settings that captions may name.
    """
    settings = tuple(name for name in backgrounds if name in SETTINGS)
    return PromptReader(tokenize_prompt(prompt, settings), backgrounds, settings).rewrite()


def parse_amount(word: str) -> int | None:
    """Return the number of a word, at most one more than a scene can have; None for other words."""
    if word in LARGE_NUMBERS or (word.isdecimal() and word not in DENIALS):
        return MAX_OBJECTS + 1
    return NUMBERS.get(word)


class PromptReader:
    """Parser of one prompt: first the background, then the kinds, then their relation."""

    def __init__(self, tokens: list[PromptToken], backgrounds: Sequence[str], settings: tuple[str, ...]) -> None:
        self.tokens: list[PromptToken] = tokens
        self.backgrounds: Sequence[str] = backgrounds
        self.settings: tuple[str, ...] = settings
        self.unexpressed: set[int] = set()  # indices of framing words whose meaning the caption leaves out

    def rewrite(self) -> RewrittenPrompt:
        """Return the caption and the ignored words."""
        background, kinds = self.find_background(), self.find_kinds()[:2]
        if not kinds:
            return RewrittenPrompt("", self.ignored_words())
        caption = background.surround(self.phrase_scene(kinds), kinds[0].mentions[0])
        return RewrittenPrompt(caption, self.ignored_words())

    def ignored_words(self) -> tuple[str, ...]:
        """Return the words that the caption leaves out, as written."""
        return tuple(
            token.written for index, token in enumerate(self.tokens)
            if index in self.unexpressed or not (token.used or token.word in FRAMING_WORDS)
        )  # fmt: skip

    def word(self, index: int) -> str:
        """Return the word at an index, empty outside the prompt."""
        return self.tokens[index].word if 0 <= index < len(self.tokens) else ""

    def find_background(self) -> BackgroundPhrase:
        """Return the colour that is called the background, else a setting, else the first background."""
        grammar = known_words(self.settings)
        known = [index for index, token in enumerate(self.tokens) if token.word in grammar and not token.emoji]
        words = [self.word(index) for index in known]
        setting, phrase = find_setting(words, self.settings)
        if (setting is None or "background" in words) and (colour := self.find_colour(known)):
            return colour
        if setting is not None:
            self.use_background([known[index] for index in phrase])
            wording = choose_wording(setting, [words[index] for index in phrase])
            return BackgroundPhrase(wording, wording, known[phrase.start])
        first = self.backgrounds[0]
        if first in SETTINGS:
            return BackgroundPhrase(choose_wording(first, []), "")
        return BackgroundPhrase.for_colour(first)

    def find_colour(self, known: list[int]) -> BackgroundPhrase | None:
        """Return the first colour that is called the background, None without one."""
        indices = [index for index in known if self.word(index) not in SKIPPED_WORDS]
        for position in background_indices([self.word(index) for index in indices]):
            index = indices[position]
            if self.word(index) in self.backgrounds:
                preposition = "against" if "against" in (self.word(index - 1), self.word(index - 2)) else "on"
                self.use_background([index])
                return BackgroundPhrase.for_colour(self.word(index), index, preposition)
        return None

    def use_background(self, indices: list[int]) -> None:
        """Mark the words of the background, and the words before it that lead to it, as used."""
        first = indices[0]
        while self.word(first - 1) in LEADING_WORDS:
            first -= 1
        for index in [*range(first, indices[0]), *indices]:
            self.tokens[index].used = True

    def find_kinds(self) -> list[KindMentions]:
        """Return the kinds that are named, in order."""
        kinds: dict[str, KindMentions] = {}
        modifiers = Modifiers()
        for index, token in enumerate(self.tokens):
            if token.used or (token.word in RELATION_OF and not token.emoji):
                modifiers = Modifiers()
            elif token.word in KIND_OF:
                self.add_mention(kinds, modifiers, index)
                modifiers = Modifiers()
            elif token.word in SIZE_OF and kinds and self.word(index - 1) in COPULAS and not self.is_kind(index + 1):
                add_sizes(list(kinds.values())[-1], [token])  # "the frogs are small"
            else:
                modifiers.add(token)
        return list(kinds.values())

    def is_kind(self, index: int) -> bool:
        """Return whether the word at an index is the noun of a kind."""
        return self.word(index) in KIND_OF

    def add_mention(self, kinds: dict[str, KindMentions], modifiers: Modifiers, index: int) -> None:
        """Add the noun at an index to the kinds, unless it is denied or an alternative."""
        token = self.tokens[index]
        kind = KIND_OF[token.word]
        if modifiers.denials:  # a caption without the kind expresses the denial
            for expressed in (token, *modifiers.denials):
                expressed.used = True
        elif modifiers.alternative and kinds:
            return
        elif kind not in kinds:
            kinds[kind] = KindMentions(kind, [index], modifiers.count(token), modifiers.numbers, [])
            add_sizes(kinds[kind], modifiers.sizes)
        else:
            known = kinds[kind]
            is_repeated = token.emoji and self.tokens[index - 1].emoji and index - 1 in known.mentions
            if not (modifiers.definite or (is_repeated and known.numbers)):  # "the cat" is the one mentioned before
                known.count += modifiers.count(token)
            known.mentions.append(index)
            known.numbers += modifiers.numbers
            add_sizes(known, modifiers.sizes)

    def phrase_scene(self, kinds: list[KindMentions]) -> str:
        """Return the words for one kind, or for two kinds and their relation."""
        counts = limit_counts([kind.count for kind in kinds])
        phrases = {kind.kind: self.phrase_kind(kind, count) for kind, count in zip(kinds, counts, strict=True)}
        if len(kinds) == 1:
            return phrases[kinds[0].kind]
        first, relation, second = self.find_arrangement(kinds) or self.choose_arrangement(kinds)
        return f"{phrases[first.kind]} {relation} {phrases[second.kind]}"

    def phrase_kind(self, kind: KindMentions, count: int) -> str:
        """Return a noun phrase such as "two small frogs"; a number that was too large stays unused."""
        fits = count == kind.count
        for token in [*(self.tokens[index] for index in kind.mentions), *kind.sizes, *kind.numbers * fits]:
            token.used = True
        if not fits and not kind.numbers:  # "cats and dogs", and emoji
            self.unexpressed.update(kind.mentions[count:] or kind.mentions)
        number = next((token.word for token in kind.numbers if token.word in COUNTS[count]), COUNTS[count][0])
        size = kind.sizes[0].word if kind.sizes else ""
        return noun_phrase(number, size, kind.kind, count)

    def find_arrangement(self, kinds: list[KindMentions]) -> Arrangement | None:
        """Return the first stated relation of two kinds, None without one; words that agree with it are used."""
        stated: Arrangement | None = None
        equivalent: set[tuple[str, str]] = set()
        for index, token in enumerate(self.tokens):
            if token.used or token.emoji or (arrangement := self.arrangement_at(index, kinds)) is None:
                continue
            first, relation, second = arrangement
            if stated is None:
                stated = first, self.wording_at(index, relation), second
                equivalent = {(first.kind, relation), (second.kind, MIRRORED[relation])}
            token.used = (first.kind, relation) in equivalent
        return stated

    def arrangement_at(self, index: int, kinds: list[KindMentions]) -> Arrangement | None:
        """Return the relation of two kinds that the word at an index states, None if it states none."""
        relation = RELATION_OF.get(self.word(index)) or SIDE_RELATIONS.get(self.word(index))
        if relation is None:
            return None
        mentions = sorted((mention, order) for order, kind in enumerate(kinds) for mention in kind.mentions)
        before = [kinds[order] for mention, order in mentions if mention < index]
        behind = [kinds[order] for mention, order in mentions if mention > index]
        following = range(index + 1, len(self.tokens) + 1)
        object_index = next(each for each in following if self.word(each) not in ("hand", "side"))
        has_object = self.word(index) not in SIDE_RELATIONS or self.word(object_index) == "of"
        object_index += self.word(object_index) == "of"
        if self.word(object_index) in PRONOUNS or (not has_object and self.word(index - 1) in PRONOUNS):
            about = behind[:1] if len(before) == 1 else before[-1:]  # "above it a star", "a dog to its left"
        elif has_object:
            about = before[-1:] or [kind for kind in behind if kind is not behind[0]][:1]  # "above a dog, a cat"
            if not behind or behind[0] in about:
                return None
        elif "the" in (self.word(index - 1), self.word(index - 2)):
            # "a cat on the left, a dog on the right" and "on the left a cat, on the right a dog"
            about = behind[:1] if self.begins_with_side(mentions[0][0]) else before[-1:]
        else:
            return None
        others = [kind for kind in kinds if kind not in about]
        return (about[0], relation, others[0]) if about and others else None

    def begins_with_side(self, first_mention: int) -> bool:
        """Return whether a side is named before the first kind."""
        return any(token.word in SIDE_RELATIONS for token in self.tokens[:first_mention])

    def wording_at(self, index: int, relation: str) -> str:
        """Return a relation in the wording of the prompt, if that is a wording of the grammar."""
        if self.word(index) not in SIDE_RELATIONS:
            return self.word(index)
        if relation not in ("left", "right"):
            return relation
        is_short = self.word(index + 1) == "of" and self.word(index - 1) != "the"
        return f"{relation} of" if is_short else f"to the {relation} of"

    def choose_arrangement(self, kinds: list[KindMentions]) -> Arrangement:
        """Choose a relation of two kinds; the words that join them do not express it and are reported."""
        between = range(kinds[0].mentions[0] + 1, kinds[1].mentions[0])
        joining = [index for index in between if self.word(index) in JOINING_WORDS and not self.tokens[index].used]
        self.unexpressed.update(joining)
        is_on_top = any(self.word(index) == "on" for index in joining)
        return kinds[0], "above" if is_on_top else "to the left of", kinds[1]


def add_sizes(kind: KindMentions, sizes: list[PromptToken]) -> None:
    """Add sizes that agree with the first size of a kind; others stay unused and are reported."""
    for token in sizes:
        if not kind.sizes or SIZE_OF[token.word] == SIZE_OF[kind.sizes[0].word]:
            kind.sizes.append(token)


def limit_counts(counts: list[int]) -> list[int]:
    """Limit the counts of one or two kinds to what a scene can have, at least one of each."""
    limited: list[int] = []
    for num_left, count in zip(range(len(counts) - 1, -1, -1), counts, strict=True):
        limited.append(min(count, MAX_OBJECTS - sum(limited) - num_left))
    return limited


def choose_wording(setting: str, words: list[str]) -> str:
    """Return the wording of a setting that has most words in common with those of the prompt."""
    wordings = SETTINGS[setting].wordings
    if " ".join(words) in wordings:
        return " ".join(words)
    return max(wordings, key=lambda wording: len({*wording.split()} & {*words} - {*ARTICLES}))
