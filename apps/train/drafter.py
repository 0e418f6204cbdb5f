"""Train a drafter: `polydraft train drafter --target tiny-image --kind lm --out runs/drafter-lm`.

Sequences are the target's own, written on training prompts with its default settings and kept in `--out`, so a stopped
run resumes with them. Where rendering is free, every second batch is rendered instead: the target has learnt to write
that, and on both the student matches the target's whole law.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import PreTrainedModel

from polydraft.apps.train.lessons import LESSONS, Lessons
from polydraft.core.drafters.block import BlockNetwork
from polydraft.core.drafters.eagle import EagleNetwork
from polydraft.core.drafters.heads import MedusaHeads
from polydraft.core.drafters.hydra import HydraHeads
from polydraft.core.drafters.kangaroo import KangarooAdapter
from polydraft.core.drafters.network import FeatureNetwork
from polydraft.core.errors import UnsupportedMethod
from polydraft.core.fit import best_shares, best_spread
from polydraft.core.training import distill, eagle, parallel
from polydraft.core.training import exit as early
from polydraft.core.training.distill import collect, distil, shallow_copy_of
from polydraft.core.training.examples import Examples, read
from polydraft.modalities.loading import load

ROWS = 32
LM_LAYERS = 2


@dataclass(frozen=True)
class Recipe:
    """How a kind of drafter is made: the untrained student of (target, **settings), its loss, what is fitted to it on
    held-out samples, and which settings it takes."""

    student: Callable[..., Any]
    loss: Callable[[PreTrainedModel, Any, Examples], Tensor]
    fit: Callable[[PreTrainedModel, Any, Examples], dict[str, Any]]
    settings: tuple[str, ...] = ()


def spread_of(laws: Callable[..., Sequence[Tensor]]) -> Callable[..., dict[str, Any]]:
    def fit(target: PreTrainedModel, student: Any, kept: Examples) -> dict[str, Any]:
        p, q, *_ = laws(target, student, kept)
        return {"spread": round(best_spread(p, q), 3)}

    return fit


def shares_of(target: PreTrainedModel, student: Any, kept: Examples) -> dict[str, Any]:
    shares = best_shares(*parallel.laws(target, student, kept))
    return {"shares": [[round(share, 4) for share in row] for row in shares]}


def on_features(network: type[FeatureNetwork], target: PreTrainedModel, **settings: Any) -> FeatureNetwork:
    """A network on the features of `target`."""
    return network(target.config.get_text_config(), **settings)


KINDS = {
    "lm": Recipe(lambda target: shallow_copy_of(target, LM_LAYERS), distill.divergence, spread_of(distill.laws)),
    "eagle": Recipe(
        partial(on_features, EagleNetwork), eagle.continuation, spread_of(eagle.laws), ("pictures", "words")
    ),
    "heads": Recipe(partial(on_features, MedusaHeads), parallel.divergence, shares_of, ("places",)),
    "kangaroo": Recipe(
        lambda target: KangarooAdapter(target.config.get_text_config()).behind(target),
        early.divergence,
        spread_of(early.laws),
    ),
    "hydra": Recipe(partial(on_features, HydraHeads), parallel.divergence, shares_of, ("places",)),
    "block": Recipe(partial(on_features, BlockNetwork), parallel.overlap, shares_of, ("places",)),
}


def run(
    target: str, kind: str, out: Path, minutes: float, seed: int = 0, samples: Path | None = None,
    start: Path | None = None, **settings: Any,
) -> None:  # fmt: skip
    """A quarter of the time draws with the target, the rest distils. Raises UnsupportedMethod for an unknown kind.

    samples: where what the target drew is kept, `out` unless several drafters share it. start: weights to begin with.
    settings: of the network, None is its own; `places` of heads; of an EAGLE head `pictures` (`eagle.PICTURES`), and
    `words`, how many ids it may guess, those that the target says most often.
    """
    if kind not in KINDS:
        raise UnsupportedMethod(f"drafters of kind {kind!r} cannot be trained; use one of {', '.join(KINDS)}.")
    recipe = KINDS[kind]
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given.keys() - set(recipe.settings):
        fitting = ", ".join(other for other, its in KINDS.items() if name in its.settings)
        raise UnsupportedMethod(f"drafters of kind {kind!r} have no {name}; leave it out, or train one of {fitting}.")
    pipe = load(target)
    model = pipe.read_target(pipe.card.target)  # as the weights were: drawing packs the pipeline's
    words = given.pop("words", None)
    student = recipe.student(model, **given)
    lessons: Lessons = LESSONS[pipe.card.modality](pipe)
    drawn = draw(lessons, samples or out / "samples", minutes / 4, seed)
    if words is not None:
        student.guess_only(drawn.most_said(words))
    if start:
        student.load_state_dict(load_file(start / "model.safetensors"))
    if lessons.blank is None:  # no row's prompt is ever replaced
        drawn = drawn.remembered(model)
    kept = drawn.examples(range(len(drawn.prompts) - ROWS, len(drawn.prompts)), lessons.unread)  # never trained on
    source = own = batches(lessons, drawn, seed)
    if (rendered := lessons.rendered(seed)) is not None:
        source = itertools.chain.from_iterable(zip(own, rendered, strict=True))
    curve = distil(
        partial(recipe.loss, model), student, source, minutes=minutes * 3 / 4, folder=out, validate=lambda: kept
    )
    (out / "curve.json").write_text(json.dumps(curve))
    with torch.no_grad():
        fitted = recipe.fit(model, student, kept)
    (out / "fitted.json").write_text(json.dumps(fitted))


@dataclass(frozen=True)
class Drawn:
    """What a target wrote, a row each: ids of prompts and of what follows, and what else was read, if anything.

    seen: features and embeddings `[L, D]` of every row, once they are remembered.
    """

    prompts: list[tuple[int, ...]]
    outputs: list[Tensor]
    inputs: list[dict[str, Tensor]]
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def most_said(self, count: int) -> list[int]:
        """At most `count` ids, the more frequent the earlier."""
        times = torch.bincount(torch.cat(self.outputs))
        return times.argsort(descending=True, stable=True)[: min(count, int((times > 0).sum()))].tolist()

    def examples(
        self, rows: Iterable[int], unread: Tensor | None, blank: Container[int] = (), instead: Any = None
    ) -> Examples:
        """Some of it; rows in `blank` follow the prompt `instead` of their own."""
        rows = list(rows)
        prompts = [instead if place in blank else self.prompts[row] for place, row in enumerate(rows)]
        inputs = [self.inputs[row] for row in rows] if self.inputs[0] and not self.seen else []
        made = Examples.join(prompts, [self.outputs[row] for row in rows], inputs, unread)
        if not self.seen:
            return made
        features, embeddings = (
            pad_sequence([self.seen[row][side] for row in rows], batch_first=True) for side in (0, 1)
        )
        return replace(made, seen=(features, embeddings))

    def remembered(self, model: PreTrainedModel) -> Drawn:
        """With what `model` sees in every row: then it need not look again in every step."""
        seen: list[tuple[Tensor, Tensor]] = []
        for first in tqdm(range(0, len(self.prompts), ROWS), desc="read with the target"):
            rows = range(first, min(first + ROWS, len(self.prompts)))
            sides = read(model, self.examples(rows, None))
            lengths = [len(self.prompts[row]) + len(self.outputs[row]) for row in rows]
            seen += [(sides[0][at, :end].clone(), sides[1][at, :end].clone()) for at, end in enumerate(lengths)]
        return replace(self, seen=seen)


def draw(lessons: Lessons, folder: Path, minutes: float, seed: int) -> Drawn:
    """What the target writes on prompts: at least two batches, then until `minutes` are over; all is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    method, begun, budget = lessons.method(), time.monotonic(), round(minutes * 60)
    with tqdm(total=budget, unit="s", desc="draw with the target") as bar:
        for index in itertools.count():
            path = folder / f"{index:04d}.safetensors"
            spent = len(list(folder.glob("*.json"))) >= 2 and time.monotonic() - begun > budget
            if not path.exists():
                if spent:
                    break
                prompts = lessons.prompts(np.random.default_rng([seed, index]), ROWS, first=10**6 + index * ROWS)
                written = pad_sequence(collect(method, prompts), batch_first=True, padding_value=-1)
                inputs = {
                    f"{row}.{name}": value.to(torch.bfloat16) if value.is_floating_point() else value
                    for row, prompt in enumerate(prompts) for name, value in prompt.inputs.items()
                }  # fmt: skip
                save_file({"ids": written.to(torch.int32)} | inputs, path)
                path.with_suffix(".json").write_text(json.dumps([list(prompt.branches[0]) for prompt in prompts]))
            bar.update(min(budget, round(time.monotonic() - begun)) - round(bar.n))
    return found(sorted(folder.glob("*.json")))


def found(files: list[Path]) -> Drawn:
    """What `draw` kept."""
    drawn = Drawn([], [], [])
    for file in files:
        asked, stored = json.loads(file.read_text()), load_file(file.with_suffix(".safetensors"))
        rows = stored.pop("ids").long()
        drawn.prompts.extend(map(tuple, asked))
        drawn.outputs.extend(row[row >= 0] for row in rows)
        inputs: list[dict[str, Tensor]] = [{} for _ in asked]
        for key, value in stored.items():
            row, _, name = key.partition(".")
            inputs[int(row)][name] = value
        drawn.inputs.extend(inputs)
    return drawn


def batches(lessons: Lessons, drawn: Drawn, seed: int) -> Iterator[Examples]:
    """Endless shuffled batches of all but the last rows; one prompt in ten is the blank one, for guidance."""
    rng = np.random.default_rng(seed)
    while True:
        picked = rng.choice(len(drawn.prompts) - ROWS, 16)
        blank = set(np.flatnonzero(rng.random(16) < 0.1).tolist()) if lessons.blank else set()
        yield drawn.examples(picked, lessons.unread, blank, lessons.blank)
