"""Training data of `tiny-vlm`: rendered scenes, and conversations about them in the model's tokens.

    tokenizer = learn_words(seed=0)
    batch = Conversations(tokenizer, seed=0).next(16)

A conversation is a description and questions about one scene, in any order, so that an image is encoded once for many
answers. `apps/data/arrangements.py` samples whether and where there is an image. The kind that covers a patch, and its
relations to the other kind, are known from the scene; they are auxiliary targets of the vision tower.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from polydraft.apps.data.arrangements import NUM_TALKS, Message, Talk, arrange, draw_kind
from polydraft.apps.data.scene_questions import sample_scene, scene_turns
from polydraft.apps.lab.recipes.image.data import images_to_tensor
from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS
from polydraft.modalities.world.scene import CANVAS, RELATIONS, Scene
from polydraft.modalities.world.words.answers import visible_relations

PAD, END, USER, ASSISTANT, SYSTEM, IMAGE = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<image>"
SPECIALS = (PAD, END, USER, ASSISTANT, SYSTEM, IMAGE)
ID = {name: place for place, name in enumerate(SPECIALS)}  # a vocabulary begins with them
WORDS = 1024  # of the vocabulary, bytes and specials included
PATCH = 16  # pixels
PATCHES = (CANVAS // PATCH) ** 2
LENGTH = 256  # of a training sequence; turns that do not fit are left out
IGNORED = -100  # a token that no loss counts


def train_tokenizer(seed: int = 0, scenes: int = 4000) -> Tokenizer:
    """Train a byte-level BPE tokenizer on texts about scenes; it can spell everything else."""

    def texts() -> Iterator[str]:
        rng = np.random.default_rng(seed)
        for _ in range(scenes):
            for turn in scene_turns(*sample_scene(rng), rng):
                yield from turn

    result = Tokenizer(models.BPE())
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    result.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS, special_tokens=list(SPECIALS), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    result.train_from_iterator(texts(), trainer)
    return result


@dataclass(frozen=True)
class ConversationBatch:
    """Conversations `<|user|> image question <|assistant|> answer <|end|> <|user|> …`, right-padded.

    P is the number of scenes that are asked about; a conversation shows one of them, two, or none.
    """

    ids: Tensor  # [B, LENGTH]
    labels: Tensor  # [B, LENGTH], the ids of answers and their ends, NOTHING elsewhere
    pixels: Tensor  # [P, 3, 128, 128] in -1..1
    is_shown: Tensor  # [P] bool, whether a scene stands in `ids`, where scenes are in the same order
    kinds: Tensor  # [P, PATCHES], 0 or 1 + the kind and size that covers a patch's middle
    relations: Tensor  # [P, PATCHES, 4], which of RELATIONS hold between the kind that covers a patch and the other one


@dataclass(frozen=True)
class ConversationRow:
    """Training sequence of one conversation, before padding."""

    ids: list[int]
    labels: list[int]
    scenes: list[Scene]  # that it is about
    shown: list[bool]  # which of them it shows


class Conversations:
    """Endless batches of conversations about training scenes, or about held-out ones."""

    def __init__(self, tokenizer: Tokenizer, seed: int | list[int], held_out: bool = False) -> None:
        self.tokenizer: Tokenizer = tokenizer
        self.rng: np.random.Generator = np.random.default_rng(seed)
        self.held_out: bool = held_out

    def next_batch(self, rows: int) -> ConversationBatch:
        result = [self.sample_row() for _ in range(rows)]
        ids = torch.tensor([row.ids + [ID[PAD]] * (LENGTH - len(row.ids)) for row in result])
        labels = torch.tensor([row.labels + [IGNORED] * (LENGTH - len(row.ids)) for row in result])
        scenes = [scene for row in result for scene in row.scenes]
        shown = torch.tensor([shown for row in result for shown in row.shown])
        seen = zip(*(patch_labels(scene) for scene in scenes), strict=True)
        kinds, relations = (torch.from_numpy(np.stack(found)) for found in seen)
        return ConversationBatch(
            ids, labels, images_to_tensor([scene.render() for scene in scenes]), shown, kinds, relations
        )

    def sample_row(self) -> ConversationRow:
        """Return one conversation of any kind."""
        kind = draw_kind(self.rng)
        drawings = [sample_scene(self.rng, self.held_out) for _ in range(NUM_TALKS[kind])]
        talks = [Talk(scene, scene_turns(composition, scene, self.rng)) for composition, scene in drawings]
        ids, labels, placed = self.encode(arrange(kind, talks, self.rng))
        scenes = [scene for _, scene in drawings]
        return ConversationRow(ids, labels, scenes, [any(scene is other for other in placed) for scene in scenes])

    def encode(self, messages: list[Message]) -> tuple[list[int], list[int], list[Scene]]:
        """Return ids, labels and the scenes whose images have tokens in the ids.

        Turns that do not fit are left out, and so is everything after an image that does not fit.
        """
        ids: list[int] = []
        labels: list[int] = []
        placed: list[Scene] = []
        if messages[0]["role"] == "system":
            ids, messages = self.encode_message(messages[0]), messages[1:]
            labels = [IGNORED] * len(ids)
        for question, answer in zip(messages[::2], messages[1::2], strict=True):
            before, after = [*self.encode_message(question), ID[ASSISTANT]], [*self.encode_message(answer)[1:], ID[END]]
            pictures = [part["image"] for part in question["content"] if part["type"] == "image"]
            if len(ids) + len(before) + len(after) <= LENGTH:
                ids += before + after
                labels += [IGNORED] * len(before) + after
                placed += pictures
            elif pictures:
                break
        return ids, labels, placed

    def encode_message(self, message: Message) -> list[int]:
        """Return the token of a role and the message's content as the chat template writes it, images first."""
        kinds = [part["type"] for part in message["content"]]
        texts = " ".join(part["text"] for part in message["content"] if part["type"] == "text")
        return [ID[f"<|{message['role']}|>"], *[ID[IMAGE]] * PATCHES * kinds.count("image"), *self.encode_text(texts)]

    def encode_text(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def patch_labels(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Return labels of patches.

    Returns:
        tuple: [PATCHES] 0 for the background, else 1 + the index of the kind and size that covers the middle of a
        patch; and [PATCHES, 4], 1 for each of RELATIONS in which that kind stands to the other.
    """
    middle = np.arange(CANVAS // PATCH) * PATCH + PATCH // 2
    kinds = np.zeros((len(middle), len(middle)), np.int64)
    relations = np.zeros((len(middle), len(middle), len(RELATIONS)), np.float32)
    seen = {(first, relation) for first, relation, _ in visible_relations(scene)}
    for item in scene.objects:
        inside_x = (item.x <= middle) & (middle < item.x + item.side)
        inside_y = (item.y <= middle) & (middle < item.y + item.side)
        place = np.ix_(inside_y, inside_x)
        kinds[place] = 1 + list(KINDS).index(item.kind) * len(GLYPH_SIZES) + list(GLYPH_SIZES).index(item.size)
        relations[place] = [(item.kind, relation) in seen for relation in RELATIONS]
    return kinds.ravel(), relations.reshape(-1, len(RELATIONS))
