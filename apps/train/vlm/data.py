"""What `tiny-vlm` is trained on: rendered scenes, and conversations about them in the model's own words and marks.

    tokenizer = learn_words(seed=0)
    batch = Conversations(tokenizer, seed=0).next(16)

A conversation is a description and questions about one scene, in any order, so that a picture is read once for many
answers. When the picture comes, and whether there is one, is drawn in `arrangements`. Which kind covers which patch,
and how it stands to the other, is known from the scene; it helps the vision tower to begin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from polydraft.apps.train.image.data import to_pixels
from polydraft.apps.train.vlm.arrangements import NUM_TALKS, Message, Talk, arrange, draw_kind
from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.scene import CANVAS, RELATIONS, Composition, Scene, place, random_composition
from polydraft.modalities.world.words.answers import to_be_seen
from polydraft.modalities.world.words.descriptions import description, stated
from polydraft.modalities.world.words.questions import questions

PAD, END, USER, ASSISTANT, SYSTEM, IMAGE = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<image>"
SPECIALS = (PAD, END, USER, ASSISTANT, SYSTEM, IMAGE)
ID = {name: place for place, name in enumerate(SPECIALS)}  # a vocabulary begins with them
WORDS = 1024  # of the vocabulary, bytes and specials included
PATCH = 16  # pixels
PATCHES = (CANVAS // PATCH) ** 2
LENGTH = 256  # of a training sequence; turns that do not fit are left out
DESCRIBED = 0.8  # of all conversations hold a description
DESCRIBE = (
    "Describe the picture in full sentences.", "Describe the picture.", "Describe this image.",
    "What do you see? Describe it.", "Please describe the scene in detail.", "Tell me about this picture.",
)  # fmt: skip
NOTHING = -100  # a token that no loss counts


def turns(composition: Composition, scene: Scene, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Questions and answers about a scene whose sizes are told, in any order."""
    asked = questions_about(composition, scene, rng)
    if rng.random() < DESCRIBED:
        asked.append(request_for_description(composition, rng))
    return [asked[place] for place in rng.permutation(len(asked))]


def questions_about(composition: Composition, scene: Scene, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Return a question of every topic with its answer."""
    return [(question.text, question.answer) for question in questions(composition, rng, scene)]


def request_for_description(composition: Composition, rng: np.random.Generator) -> tuple[str, str]:
    """Return a request in one of the wordings, and a description."""
    return DESCRIBE[rng.integers(len(DESCRIBE))], description(composition, rng)


def drawn(rng: np.random.Generator, held_out: bool = False) -> tuple[Composition, Scene]:
    """A scene, and the composition with sizes as they were drawn."""
    composition = random_composition(rng, held_out=held_out)
    scene = place(composition, rng)
    return stated(composition, scene), scene


def learn_words(seed: int = 0, scenes: int = 4000) -> Tokenizer:
    """A byte-level BPE vocabulary of what is said about scenes; it can spell everything else."""

    def said() -> Iterator[str]:
        rng = np.random.default_rng(seed)
        for _ in range(scenes):
            for turn in turns(*drawn(rng), rng):
                yield from turn

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS, special_tokens=list(SPECIALS), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    made.train_from_iterator(said(), trainer)
    return made


@dataclass(frozen=True)
class Batch:
    """Conversations `<|user|> picture question <|assistant|> answer <|end|> <|user|> …`, right-padded.

    P is the number of scenes that are asked about; a conversation shows one of them, two, or none.
    """

    ids: Tensor  # [B, LENGTH]
    labels: Tensor  # [B, LENGTH], the ids of answers and their ends, NOTHING elsewhere
    pixels: Tensor  # [P, 3, 128, 128] in -1..1
    shown: Tensor  # [P] bool, whether a scene stands in `ids`, where scenes are in the same order
    kinds: Tensor  # [P, PATCHES], 0 or 1 + the kind and size that covers a patch's middle
    stands: Tensor  # [P, PATCHES, 4], which of RELATIONS hold between the kind that covers a patch and the other one


@dataclass(frozen=True)
class Row:
    """A conversation as it is trained on, before it is padded."""

    ids: list[int]
    labels: list[int]
    scenes: list[Scene]  # that it is about
    shown: list[bool]  # which of them it shows


class Conversations:
    """Endless batches about training scenes, or about held-out ones."""

    def __init__(self, tokenizer: Tokenizer, seed: int | list[int], held_out: bool = False) -> None:
        self.tokenizer, self.rng, self.held_out = tokenizer, np.random.default_rng(seed), held_out

    def next(self, rows: int) -> Batch:
        made = [self.row() for _ in range(rows)]
        ids = torch.tensor([row.ids + [ID[PAD]] * (LENGTH - len(row.ids)) for row in made])
        labels = torch.tensor([row.labels + [NOTHING] * (LENGTH - len(row.ids)) for row in made])
        scenes = [scene for row in made for scene in row.scenes]
        shown = torch.tensor([shown for row in made for shown in row.shown])
        seen = zip(*(covered(scene) for scene in scenes), strict=True)
        kinds, stands = (torch.from_numpy(np.stack(found)) for found in seen)
        return Batch(ids, labels, to_pixels([scene.render() for scene in scenes]), shown, kinds, stands)

    def row(self) -> Row:
        """Return one conversation of any kind."""
        kind = draw_kind(self.rng)
        drawings = [drawn(self.rng, self.held_out) for _ in range(NUM_TALKS[kind])]
        talks = [Talk(scene, turns(composition, scene, self.rng)) for composition, scene in drawings]
        ids, labels, placed = self.encode(arrange(kind, talks, self.rng))
        scenes = [scene for _, scene in drawings]
        return Row(ids, labels, scenes, [any(scene is other for other in placed) for scene in scenes])

    def encode(self, messages: list[Message]) -> tuple[list[int], list[int], list[Scene]]:
        """Return ids, labels and the pictures that have a place in the ids.

        Turns that do not fit are left out; what follows a picture that does not fit is, too.
        """
        ids: list[int] = []
        labels: list[int] = []
        placed: list[Scene] = []
        if messages[0]["role"] == "system":
            ids, messages = self.encode_message(messages[0]), messages[1:]
            labels = [NOTHING] * len(ids)
        for question, answer in zip(messages[::2], messages[1::2], strict=True):
            before, after = [*self.encode_message(question), ID[ASSISTANT]], [*self.encode_message(answer)[1:], ID[END]]
            pictures = [part["image"] for part in question["content"] if part["type"] == "image"]
            if len(ids) + len(before) + len(after) <= LENGTH:
                ids += before + after
                labels += [NOTHING] * len(before) + after
                placed += pictures
            elif pictures:
                break
        return ids, labels, placed

    def encode_message(self, message: Message) -> list[int]:
        """Return the mark of a role and what the message holds as the chat template writes it, pictures first."""
        kinds = [part["type"] for part in message["content"]]
        said = " ".join(part["text"] for part in message["content"] if part["type"] == "text")
        return [ID[f"<|{message['role']}|>"], *[ID[IMAGE]] * PATCHES * kinds.count("image"), *self.encode_text(said)]

    def encode_text(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def covered(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """`[PATCHES]`: 0 for the background, else 1 + which kind in which size covers the middle of a patch; and
    `[PATCHES, 4]`: in which of RELATIONS that kind stands to the other."""
    middle = np.arange(CANVAS // PATCH) * PATCH + PATCH // 2
    kinds = np.zeros((len(middle), len(middle)), np.int64)
    stands = np.zeros((len(middle), len(middle), len(RELATIONS)), np.float32)
    seen = {(first, relation) for first, relation, _ in to_be_seen(scene)}
    for item in scene.objects:
        inside_x = (item.x <= middle) & (middle < item.x + item.side)
        inside_y = (item.y <= middle) & (middle < item.y + item.side)
        place = np.ix_(inside_y, inside_x)
        kinds[place] = 1 + list(KINDS).index(item.kind) * len(SIZES) + list(SIZES).index(item.size)
        stands[place] = [(item.kind, relation) in seen for relation in RELATIONS]
    return kinds.ravel(), stands.reshape(-1, len(RELATIONS))
