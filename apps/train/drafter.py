"""Train a drafter: `polydraft train drafter --target tiny-image --kind lm --out runs/drafter-lm`.

Sequences are the target's own, written on training prompts or on the user's data and kept in `--out`, so a stopped run
resumes with them. Where rendering is free, every second batch is rendered instead: the target has learnt to write that,
and on both the student matches the target's whole law. In the end held-out prompts are decoded with the drafter and
without, and a card says what came of it.

Memory holds the target, the student with its gradients and moments, and the rows of a step; everything else is on disk.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydraft.apps.commands.shared.terminal import note
from polydraft.apps.commands.shared.usage import example
from polydraft.apps.train import card
from polydraft.apps.train.kinds import Recipe, checked
from polydraft.apps.train.lessons import Lessons
from polydraft.apps.train.own.built_in import built_in_asks, lessons_of
from polydraft.apps.train.own.lessons import asks
from polydraft.apps.train.samples import TOGETHER, Samples
from polydraft.apps.train.trial import tried
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.folders.weight_files import read_tensors
from polydraft.core.methods.registry import parse
from polydraft.core.target import CausalTarget, Prompt
from polydraft.core.training import parallel
from polydraft.core.training.distill import STATE, distil
from polydraft.core.training.examples import Examples
from polydraft.modalities import loading
from polydraft.modalities.image.target import EMBEDDINGS
from polydraft.modalities.output import write_text
from polydraft.modalities.pipeline import Pipeline

DRAW, DISTIL, TRY = 0.25, 0.65, 0.1  # of the minutes given
ROWS = 16  # of a step at most
LAWS = 1 << 26  # chances that the laws of a step may hold: with them come gradients, several times over
FEATURES = 1 << 24  # numbers that its features may hold
JUDGED = 4  # held-out batches that are judged now and then
CACHE = 20.0  # GB
RENDERED, BUILT_IN = "what polydraft renders", "everyday sentences that polydraft brings"  # to learn from
ON_FEATURES = ("eagle", "heads", "hydra", "block")  # kinds that read what the target sees, whatever it draws


def run(
    target: str, kind: str, out: Path, minutes: float, seed: int = 0, samples: Path | None = None,
    start: Path | None = None, data: str | None = None, held_out: float = 0.1, cache: float = CACHE,
    size: str | None = None, rendered: Iterator[Examples] | None = None, draw: float | None = None,
    rows: int | None = None, **settings: Any,
) -> card.Report:  # fmt: skip
    """A quarter of the time draws with the target, most of the rest distils, and a tenth tries what came of it.

    samples: where what the target drew is kept, `out` unless several drafters share it. start: weights to begin with.
    data: folder, file or hub set to take prompts from; held_out: which share of it is not trained on. cache: GB of disk
    that the target's features may take; where they need more it reads anew in every step. size: of pictures that a
    target of several draws. rendered: endless batches of what the target has learnt to write, where lessons know of
    none. draw: share of the time that goes into drawing more than is kept already, `DRAW` if not given. rows: of a step
    at most, `ROWS` if not given; where steps are slow, fewer teach more. settings: of the network, None is its own;
    `places` of heads; `depth` of a block drafter; of an EAGLE head `pictures` (`eagle.PICTURES`), and `words`, how many
    ids it may guess, those that the target says most often. Raises UnsupportedMethod for an unknown kind, and
    DataUnavailable that says where the data is wrong.
    """
    recipe, given = checked(kind, settings)
    found = loading.card(target)
    if found.latent:
        raise UnsupportedMethod(
            f"{found.name} generates latents, whose drafters are trained with it; use `polydraft train tiny-latent`, "
            "or a target of ids."
        )
    draw = DRAW if draw is None else draw
    check_drawn(found, kind, size)
    asked = built_in_asks(found) if data is None else asks(data, found.modality)
    learned_from = f"`{data}`" if data is not None else RENDERED if asked is None else f"{len(asked)} {BUILT_IN}"
    folder = samples or out / "samples"
    about = {"target": target, "seed": seed}
    about |= {} if asked is None else {"data": data or BUILT_IN, "held_out": held_out}
    about |= {} if size is None else {"size": size}
    check_belongs(folder, about)
    if data is None and "family" in found.manifest:
        note(f"note: without --data {found.name} learns from {learned_from}; what you ask of it yourself teaches more")
    pipe = loading.load(target)
    pipe = pipe if size is None else pipe.sized(size)
    model, words = pipe.target(), given.pop("words", None)
    if "row" in recipe.settings:
        given["row"] = row_of(pipe, kind, recipe.above)
    if "preview" in recipe.settings:
        given["preview"] = pipe.preview
    student = recipe.student(model, **given).to(pipe.device)
    lessons: Lessons = lessons_of(pipe, asked, seed, held_out)
    drawn = Samples(model, folder, lessons.unread, forced=forced(pipe.mask))
    with what_is_left(out, folder):
        begin(folder, about)
        plain = pipe.method(parse("ar"), guided=pipe.sampling().guidance_scale != 1)
        apart, seconds = lessons.held_out(), minutes * draw * 60
        check_read(pipe.card.name, apart)
        drawn.draw(plain, lambda index: apart[index * TOGETHER : (index + 1) * TOGETHER], "held", seconds / 4)
        kept = len(drawn)
        drawn.draw(plain, lessons.prompts, "taught", seconds)
        if words is not None:
            student.guess_only(drawn.most_said(words))
        if start:
            student.load_state_dict(read_tensors(start / "model.safetensors"))
        count = rows_of_a_step(drawn, model.vocab, getattr(student, "places", 0), rows or ROWS)
        # what the target saw behind a row's own prompt is not what it sees behind the blank one
        with drawn.remembering(cache * 1e9 if recipe.on_law and not lessons.blank else 0):
            features = "cached on disk" if drawn.seen else "read anew in every step"

            def held_batches(most: int) -> Iterator[Examples]:
                for first in range(0, min(kept, most * count), count):
                    yield drawn.examples(range(first, min(first + count, kept))).to(pipe.device)

            @torch.no_grad()
            def judge() -> float:
                return statistics.fmean(
                    recipe.loss(model, student, examples).item() for examples in held_batches(JUDGED)
                )

            objective, budget = partial(recipe.loss, model), minutes * (DISTIL + DRAW - draw)
            free = lessons.rendered(count) if rendered is None else rendered
            source = batches(drawn, kept, count, seed, lessons.blank, free, recipe.on_law, pipe.device)
            made = distil(
                objective, student, source, minutes=budget, folder=out, rate=recipe.rate, judge=judge,
            )  # fmt: skip
            with torch.no_grad():
                fit = fitted(recipe, model, student, held_batches(kept))
                loss = judge()
        keep(out / "curve.json", made["curve"])
        keep(out / "fitted.json", fit)
        trial = tried(pipe, out, recipe.method, apart, minutes * TRY * 60)
    report = card.Report(
        target=target, modality=pipe.card.modality, kind=kind, drafter=str(out), data=data,
        answers=len(drawn) - kept, held_out=kept, tokens=sum(map(len, drawn.outputs[kept:])), steps=made["step"],
        minutes=made["seconds"] / 60, held_out_loss=loss, features=features,
        peak_bytes=card.peak_memory(pipe.device), trial=trial, source=learned_from,
        load=example(
            pipe.card, target, {"size": size, "drafter": str(out), "method": trial.method}, lessons.example(out)
        ),
    )  # fmt: skip
    card.write(report, out)
    return report


def fitted(recipe: Recipe, target: CausalTarget, student: Any, held: Iterable[Examples]) -> dict[str, Any]:
    """What is read off the laws of held-out batches, if anything is."""
    if recipe.laws is None or recipe.fit is None:
        return {}
    return recipe.fit(*gathered(recipe.laws(target, student, examples) for examples in held))


def row_of(pipe: Pipeline, kind: str, above: bool) -> int:
    """Tokens a row of its pictures, 0 where there is no single grid; above: whether that raises UnsupportedMethod."""
    row = pipe.row if pipe.origins is None else 0
    if above and not row:
        raise UnsupportedMethod(
            f"drafters of kind {kind!r} look at the row above, and what {pipe.card.name} generates is no single grid; "
            "train one of kind hydra."
        )
    return row


def batches(
    drawn: Samples, kept: int, count: int, seed: int, unconditional: tuple[int, ...] | None,
    rendered: Iterator[Examples] | None, on_law: bool, device: torch.device,
) -> Iterator[Examples]:  # fmt: skip
    """Endless batches of `count` rows behind the first `kept`. Where some are `rendered` every second one is, or all of
    them for students that do not learn the target's law.

    One prompt in ten is the unconditional one, for guidance, where there is one.
    """
    rng = np.random.default_rng(seed)
    while True:
        if on_law or rendered is None:
            picked = kept + rng.choice(len(drawn) - kept, min(count, len(drawn) - kept), replace=False)
            blank = set(np.flatnonzero(rng.random(len(picked)) < 0.1).tolist()) if unconditional else set()
            yield drawn.examples(picked, blank, unconditional).to(device)
        if rendered is not None:
            yield next(rendered).to(device)


def rows_of_a_step(drawn: Samples, vocab: int, places: int, most: int) -> int:
    """How many rows, `most` or fewer, have laws of at most LAWS and features of at most FEATURES.

    places: guesses behind a position.
    """
    longest = max(map(len, drawn.outputs))
    judged = min(longest, parallel.STARTS) * places if places else longest
    width = drawn.target.config.hidden_size
    return max(1, min(most, LAWS // (judged * vocab), FEATURES // (max(drawn.sizes) * width)))


def gathered(laws: Iterator[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Laws of one batch after the other, no more of them than LAWS."""
    parts: list[tuple[Tensor, ...]] = []
    for part in laws:
        parts.append(part)
        if sum(held[0].numel() for held in parts) + part[0].numel() > LAWS:
            break
    return tuple(torch.cat(side) for side in zip(*parts, strict=True))


def check_drawn(found: loading.ModelCard, kind: str, size: str | None) -> None:
    """Raise where a target's pictures, or that it draws none, do not go with what is asked for."""
    if size is not None and found.modality != "image":
        raise InvalidArgument(f"size={size} is not possible; {found.name} draws no pictures, leave it out.")
    if found.modality != "image" or "family" not in found.manifest:
        return
    if kind not in ON_FEATURES:
        raise UnsupportedMethod(
            f"drafters of kind {kind!r} cannot be trained for {found.name}; train one of {', '.join(ON_FEATURES)}, or "
            "give a smaller model with its codes as --drafter."
        )


def check_read(name: str, prompts: list[Prompt]) -> None:
    """Raise UnsupportedMethod where prompts of pictures are more than ids, which samples do not keep."""
    if any(EMBEDDINGS in prompt.inputs for prompt in prompts):
        raise UnsupportedMethod(
            f"no drafter can be trained for {name}, whose prompts are more than their ids; use jacobi, which needs "
            "none."
        )


def forced(mask: Tensor) -> Tensor | None:
    """`[V]` bool: ids that slots of a grammar `[K, V]` have no choice about, and that no other slot has; or None."""
    alone = mask.sum(1) == 1
    found = mask[alone].any(0) & ~mask[~alone].any(0)
    return found.cpu() if found.any() else None


def check_belongs(folder: Path, about: dict[str, Any]) -> None:
    """Raises InvalidArgument where samples of something else are kept in `folder`."""
    file = folder / "about.json"
    if not file.exists():
        return
    other = json.loads(file.read_text())
    differs = [name for name in dict.fromkeys((*other, *about)) if other.get(name) != about.get(name)]
    if differs:
        name = differs[0]
        raise InvalidArgument(
            f"{folder} keeps what was drawn with {name} {other.get(name)!r} and this run has {about.get(name)!r}; give "
            "another --out, or remove that folder."
        )


def begin(folder: Path, about: dict[str, Any]) -> None:
    """`folder` is there and says what its samples are of."""
    folder.mkdir(parents=True, exist_ok=True)
    keep(folder / "about.json", about)


@contextmanager
def what_is_left(out: Path, folder: Path) -> Iterator[None]:
    """Where a run is stopped, say what it leaves."""
    try:
        yield
    except KeyboardInterrupt:
        if (out / STATE).exists():
            note(f"stopped; {out} holds a drafter that can be used, and the same command goes on with it")
        elif any(folder.glob("*.safetensors")):
            note(f"stopped; {out} holds no drafter yet, and the same command goes on with what was drawn in {folder}")
        else:
            note(f"stopped; {out} holds no drafter yet")
        raise


def keep(file: Path, value: Any) -> None:
    write_text(file, json.dumps(value) + "\n")
