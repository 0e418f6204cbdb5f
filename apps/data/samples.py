"""Sequences of a target on disk: memory holds lengths and answers, a step reads the rows it trains on.

    samples = Samples(target, folder)
    samples.draw(method, training_prompts.prompts, "taught", seconds=60)
    with samples.remembering(most=20e9):       # the target's hidden states of every row, if the disk has space
        samples.examples([3, 17, 4])

A file of a group of prompts is whole or absent, so a stopped run resumes where it was.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from polydraft.core.decode import Method
from polydraft.core.distillation.distill import generate_outputs
from polydraft.core.distillation.examples import Examples, run_target
from polydraft.core.folders.weight_files import open_tensors
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.target.encoder_decoder import ENCODER_INPUT, EncoderInput
from polydraft.core.tokens import is_in_mask
from polydraft.modalities.output import write_tensors

TOGETHER = 8  # rows written on, or read, at a time
MAX_COUNTED = 1 << 15  # positions whose probabilities are summed
MAX_LOGITS = 1 << 24  # logits that are computed at a time
SEEN = "features"  # the folder of what the target saw


@dataclass
class Samples:
    """Sequences that a target generated, with their hidden states where they are cached on disk.

    `rows` is file and index of each, `sizes` its positions with the prompt, `outputs` the answers. `unread`, `[V]`
    bool, are ids that a student without image inputs drops. `seen` tells whether hidden states of all rows are on
    disk. `undrafted`, `[V]` bool, are ids that drafters do not draft, such as those that the grammar alone determines.
    """

    target: CausalTarget
    folder: Path
    unread: Tensor | None = None
    rows: list[tuple[str, int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    seen: bool = False
    undrafted: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def draw(self, method: Method, groups: Callable[[int], list[PromptInputs]], name: str, seconds: float) -> None:
        """Add what `method` writes on `groups(0)`, `groups(1)`, …: one group, then more until `seconds` are over, or an
        empty one comes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        with tqdm(total=round(seconds), unit="s", desc=f"draw {name} with the target") as bar:
            for index in itertools.count():
                file = self.folder / f"{name}-{index:05d}.safetensors"
                if not file.exists():
                    if index and time.monotonic() - begun >= seconds:
                        break
                    if not (prompts := groups(index)):
                        break
                    write(file, prompts, generate_outputs(method, prompts))
                self.take(file)
                bar.update(min(round(seconds), round(time.monotonic() - begun)) - round(bar.n))

    def take(self, file: Path) -> None:
        """Know the rows of `file`."""
        with open_tensors(file) as stored:
            for row in range(len([key for key in stored.keys() if key.endswith(".prompt")])):  # noqa: SIM118
                self.rows.append((file.stem, row))
                self.outputs.append(stored.get_tensor(f"{row}.output").long())
                self.sizes.append(stored.get_slice(f"{row}.prompt").get_shape()[0] + len(self.outputs[-1]))

    def expected_counts(self, first: int = 0) -> Tensor:
        """Return how often the target is expected to draw every id at the positions of these answers, `[V]`.

        They are sums of its probabilities, which are smoother than counts of few answers: ids that were not drawn have
        some, too.

        Args:
            first (int): Row to begin with; those before it are held out. Of many rows every n-th is read.
        """
        step = 1 + sum(map(len, self.outputs[first:])) // MAX_COUNTED
        rows, size = range(first, len(self), step), self.target.vocab_size
        total = torch.zeros(size, dtype=torch.float64)
        for begin in range(0, len(rows), TOGETHER):
            examples = self.examples(rows[begin : begin + TOGETHER]).to(self.target.device)
            hidden_states, _ = run_target(self.target, examples)
            with torch.inference_mode():
                for block in hidden_states[examples.loss_mask].split(max(1, MAX_LOGITS // size)):
                    total += self.target.compute_logits(block).float().softmax(-1).sum(0).cpu()
        return total

    def without(self, ids: Tensor) -> Samples:
        """Return the samples for drafters that draft none of `ids`, `[V]` bool."""
        return replace(self, undrafted=ids if self.undrafted is None else self.undrafted | ids)

    def examples(self, rows: Iterable[int], blank: Container[int] = (), instead: Any = None) -> Examples:
        """Some of it; rows whose place is in `blank`, which must not be remembered, follow the prompt `instead`."""
        rows = list(rows)
        stored = [self.stored(row, not self.seen) for row in rows]
        stored_prompts = [instead if place in blank else row.pop("prompt") for place, row in enumerate(stored)]
        prompts = [self.target.ids_to_tokens(torch.as_tensor(prompt).long()) for prompt in stored_prompts]
        encoded = [row.pop(ENCODER_INPUT) for row in stored if ENCODER_INPUT in row]
        inputs = [] if self.seen else [{name: row[name] for name in row if name != "prompt"} for row in stored]
        made = Examples.from_outputs(prompts, [self.outputs[row] for row in rows], inputs, self.unread)
        made = replace(made, encoder_states=torch.stack(encoded) if encoded else None)
        if self.undrafted is not None:
            following = torch.nn.functional.pad(made.ids[:, 1:], (0, 1))
            loss_mask = made.loss_mask & ~is_in_mask(following, self.undrafted)
            made = replace(made, loss_mask=loss_mask if loss_mask.any() else made.loss_mask)
        if not self.seen:
            return made
        sides = [self.remembered(row) for row in rows]
        features, embeddings = (pad_sequence([side[place] for side in sides], batch_first=True) for place in (0, 1))
        return replace(made, cached_outputs=(features, embeddings))

    def stored(self, row: int, inputs: bool) -> dict[str, Tensor]:
        """Read the prompt of a row and, if `inputs`, the other inputs of the target; its encoder's output always."""
        file, place = self.rows[row]
        endings = (".prompt", f".input.{ENCODER_INPUT}")
        with open_tensors(self.folder / f"{file}.safetensors") as stored:
            keys = [key for key in stored.keys() if key.startswith(f"{place}.")]  # noqa: SIM118
            wanted = [key for key in keys if key.endswith(endings) or (inputs and ".input." in key)]
            return {key.rpartition(".")[2]: stored.get_tensor(key) for key in wanted}

    def remembered(self, row: int) -> tuple[Tensor, Tensor]:
        """Read the hidden states of a row, `[L, D]` each."""
        with open_tensors(self.place(row)) as stored:
            return stored.get_tensor("features"), stored.get_tensor("embeddings")

    def place(self, row: int) -> Path:
        """Return the path of a row's hidden states: a file per row, so that no more is mapped than is read."""
        file, place = self.rows[row]
        return self.folder / SEEN / f"{file}-{place:02d}.safetensors"

    @property
    def bytes_seen(self) -> int:
        """Return the bytes of the hidden states of all rows."""
        return 2 * sum(self.sizes) * self.target.config.hidden_size * self.target.model.dtype.itemsize

    @contextmanager
    def remembering(self, most: float) -> Iterator[None]:
        """Keep what the target sees on disk meanwhile, so that it need not look again in every step.

        Where that takes more than `most` bytes, or than is free, it looks again. Left behind if the run is stopped.
        """
        if self.bytes_seen <= min(most, 0.9 * shutil.disk_usage(self.folder).free):
            self.remember()
        yield
        if self.seen:
            self.seen = False
            shutil.rmtree(self.folder / SEEN)

    def remember(self) -> None:
        (self.folder / SEEN).mkdir(exist_ok=True)
        left = [row for row in range(len(self)) if not self.place(row).exists()]
        left.sort(key=self.sizes.__getitem__)  # rows that are read together are padded to the longest
        with tqdm(total=len(left), desc="read with the target", unit="row") as bar:
            for first in range(0, len(left), TOGETHER):
                rows = left[first : first + TOGETHER]
                sides = run_target(self.target, self.examples(rows))
                for at, row in enumerate(rows):
                    features, embeddings = (side[at, : self.sizes[row]].cpu().contiguous() for side in sides)
                    write_tensors(self.place(row), {"features": features, "embeddings": embeddings})
                bar.update(len(rows))
        self.seen = True


def write(file: Path, prompts: list[PromptInputs], outputs: list[Tensor]) -> None:
    """Write a group of prompts with their answers; pixels as bf16, which they are computed in where it matters.

    Of what an encoder reads its output is written.
    """
    kept: dict[str, Tensor] = {}
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        kept |= {
            f"{row}.prompt": torch.tensor(prompt.branch_token_ids[0], dtype=torch.int32),
            f"{row}.output": output.int(),
        }
        for name, given in prompt.model_kwargs.items():
            value: Any = given.states if isinstance(given, EncoderInput) else given
            kept[f"{row}.input.{name}"] = value.to(torch.bfloat16) if value.is_floating_point() else value
    write_tensors(file, kept)
