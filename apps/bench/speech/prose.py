"""Mixed prose: a hundred passages in five kinds, as people type them, that no model here was trained on.

    passages(5)   # one of each kind: prose, numbers, names, questions, paragraphs

Patterns and words are apart from those of the training sentences (`apps/data/sentences`). They are drawn by a
fixed seed, so that everybody measures on the same; a test pins them.
"""

from __future__ import annotations

import functools
import random
import re
from typing import NamedTuple

KINDS = ("prose", "numbers", "names", "questions", "paragraphs")
EACH = 20  # passages of a kind
SEED = 20
SLOT = re.compile(r"\{(\w+)\}")


class Passage(NamedTuple):
    kind: str
    text: str


def entries(text: str) -> tuple[str, ...]:
    return tuple(" ".join(entry.split()) for entry in text.split(";") if entry.strip())


PATTERNS = {
    "prose": entries("""
        {opening}, the {person} {moved} the {scene} and {noticed} {detail}.;
        The {scene} {lay} {manner}, and {detail} {lasted} {while}.;
        {opening}, nobody in the {settlement} had {expected} that {detail} would {lasting} {while}.;
        It was the {person} {of} who first {noticed} how {manner} the {scene} {lay}.
    """),
    "numbers": entries("""
        The {measured} weighed {decimal} lb and cost {money}, about {percent} more than in {year}.;
        On {date}, the bridge was closed from {clock} to {clock} for repairs worth {money}.;
        Add {spoon} tbsp of oil, {fraction} cups of flour and {grams} g of butter, then bake for {minutes} min.;
        Room {room} on the {ordinal} floor holds {count} people and measures {metres} m by {metres} m.;
        Between {early} and {late}, the {settlement} grew from {thousands} to {thousands} inhabitants.
    """),
    "names": entries("""
        {title} {given} {family} of {town} wrote to {given} {family} about the {measured}.;
        {given} {family} and {given} {family} drove from {town} to {town} with their {person}.;
        The {measured} that {given} {family} painted now hangs in {town}, near {title} {family}'s house.;
        {title} {family} was born in {town}, {country}, and studied with {given} {family}.
    """),
    "questions": entries("""
        Has the {person} ever {noticed} the {measured} behind the {scene}?;
        Why would a {person} {of} want to leave the {scene} so {manner}?;
        How many {things} can you carry to the {scene} before it gets dark?;
        Did {given} tell you where the {measured} was kept, or should we ask the {person}?;
        Which of these {things} would you rather keep, and which could we give away?
    """),
    "paragraphs": entries("""
        {opening}, the {person} {moved} the {scene}, because {detail} had {lasted} {while} and there was, as {given}
        said, little else to do in the {settlement}. Nobody {expected} an answer. By {clock} the {things} had been
        counted, and the {measured} was locked away.;
        The {settlement} of {town} has a {measured}, a {scene} and {count} {things}, and although most visitors
        {noticed} only the first of these, the {person} who opened the {measured} on {date} remembers every one of
        them. It cost {money}. Was it worth it?;
        When {title} {family} {moved} the {scene} in {year}, {detail} {lasted} {while}, the {things} were {manner}
        packed into boxes, and the {person} {of} refused to open the {measured} until somebody had explained what was
        going on.
    """),
}  # fmt: skip
WORDS = {
    name: entries(text)
    for name, text in {
        "opening": """Towards the end of the afternoon; Long before the harvest; After an uneasy silence; On the last
            morning of the festival; In spite of the fog; While the kettle boiled""",
        "person": """caretaker; lighthouse keeper; violinist; surveyor; beekeeper; apprentice; widow; ferryman;
            blacksmith; postmistress""",
        "of": "from the valley; with the walking stick; on the upper deck; in the grey overcoat",
        "moved": "crossed; circled; wandered through; returned to; hurried past; left",
        "scene": "orchard; courtyard; harbor; quayside; churchyard; railway yard; meadow; marsh; mill",
        "noticed": "noticed; mentioned; admired; described; ignored",
        "expected": "expected; imagined; understood; hoped for",
        "detail": """the smell of burnt sugar; a thin layer of frost; the rattle of loose shutters; a row of muddy
            boots; the echo of distant bells; smoke above the chimneys""",
        "lay": "lay; remained; seemed; looked",
        "lasted": "lingered; continued; persisted; drifted",
        "lasting": "linger; continue; persist; matter",
        "manner": "quietly; peacefully; strangely; carelessly; suddenly",
        "while": """for the rest of the week; until the lamps were lit; longer than anyone cared to admit; all through
            supper""",
        "settlement": "village; township; colony; district; parish",
        "measured": "barrel; telescope; marble statue; copper kettle; wardrobe; cello; ledger; lantern",
        "things": "pears; candles; suitcases; blankets; envelopes; oars; feathers; jars",
        "title": "Dr.; Mrs.; Mr.; Prof.; Capt.",
        "given": """Tobias; Ingrid; Rosalind; Mateo; Priya; Desmond; Yolanda; Kwame; Beatrix; Anselm""",
        "family": """Okafor; Lindqvist; Abernathy; Castellano; Vandermeer; Hathaway; Moriarty; Szymanski; Delacroix;
            Thistlewood""",
        "town": """Saskatoon; Ballymena; Wollongong; Tallahassee; Aberystwyth; Valparaiso; Poughkeepsie; Leominster""",
        "country": "Ireland; Chile; Norway; Ghana; Wales",
        "spoon": "2; 3; 4",
        "fraction": "1/2; 3/4; 2 1/2; 1 1/3",
    }.items()
}


def make_passage(name: str, rng: random.Random) -> str:
    """Return the text of a slot without a list, in digits."""
    return {
        "decimal": lambda: f"{rng.randint(2, 90)}.{rng.randint(1, 9)}",
        "money": lambda: rng.choice((f"${rng.randint(3, 900)}.{rng.randint(1, 99):02d}", f"${rng.randint(1, 99)},500")),
        "percent": lambda: f"{rng.randint(3, 60)}%",
        "year": lambda: str(rng.randint(1790, 2024)),
        "early": lambda: str(rng.randint(1790, 1880)),
        "late": lambda: str(rng.randint(1881, 2024)),
        "date": lambda: (
            f"{rng.choice(('March', 'August', 'Oct.', 'December'))} {rng.randint(1, 28)}, {rng.randint(1950, 2024)}"
        ),
        "clock": lambda: f"{rng.randint(1, 12)}:{rng.choice((10, 15, 30, 45))} {rng.choice(('a.m.', 'p.m.'))}",
        "grams": lambda: str(rng.randrange(50, 500, 25)),
        "minutes": lambda: str(rng.randrange(10, 60, 5)),
        "room": lambda: str(rng.randint(101, 999)),
        "ordinal": lambda: f"{rng.choice((4, 5, 6, 7, 8, 9, 10, 14))}th",
        "count": lambda: str(rng.randint(12, 240)),
        "metres": lambda: f"{rng.randint(2, 20)}.{rng.choice((2, 4, 5, 8))}",
        "thousands": lambda: f"{rng.randint(1, 480)},{rng.randint(0, 999):03d}",
    }[name]()


@functools.cache
def all_passages() -> tuple[Passage, ...]:
    """Return all passages, alternating between kinds."""
    rng, found = random.Random(SEED), dict.fromkeys((Passage("", ""),))
    for index in range(EACH):
        for kind in KINDS:
            passage = Passage("", "")
            while passage in found:
                passage = Passage(kind, fill_template(PATTERNS[kind][index % len(PATTERNS[kind])], rng))
            found[passage] = None
    return tuple(found)[1:]


def fill_template(pattern: str, rng: random.Random) -> str:
    def word(slot: re.Match[str]) -> str:
        return rng.choice(WORDS[slot[1]]) if slot[1] in WORDS else make_passage(slot[1], rng)

    return SLOT.sub(word, pattern)


def passages(count: int) -> list[Passage]:
    """Return the first `count` passages."""
    return list(all_passages()[:count])
