"""Train a CTC head for a model that transcribes: `polydraft train drafter --target whisper-base --kind ctc`.

The target transcribes windows of the user's recordings greedily; its own text is what the head learns to read off its
encoder's output, so recordings need no texts. Windows that have been transcribed are kept in `--out`, and a stopped run
resumes with them.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.apps.data.recordings import find_recordings
from polydraft.apps.terminal.usage import Inputs, example
from polydraft.apps.train import card
from polydraft.apps.train.answers import begin, check_belongs, keep
from polydraft.apps.train.evaluation import evaluate_drafter
from polydraft.apps.train.windows import HeardWindow, prompt_of, transcribe_windows
from polydraft.core.distillation.distill import STATE_FILE, distil
from polydraft.core.drafters.heads.ctc import CTCModel
from polydraft.core.errors import DataUnavailable, UnsupportedModel
from polydraft.modalities.loading import load
from polydraft.modalities.transcription.pipeline import WhisperPipeline

DRAW, DISTIL, TRY = 0.35, 0.6, 0.05  # of the minutes given
ROWS = 8  # windows of a step
WORDS = 6000  # token ids that the head can read, the most frequent ones
NOISE = 0.2  # most of the encoder's output in a step, relative to its spread
SPANS, SPAN = 6, (5, 25)  # spans of every window that are masked in a step, and how many positions they have
RATE = 2e-3
METHOD = "ctc"


@dataclass(frozen=True)
class WindowBatch:
    """Windows of a training step."""

    states: Tensor  # [B, S, D], right-padded
    state_lens: Tensor  # [B]
    labels: Tensor  # outputs of the head, of all windows in a row
    label_lens: Tensor  # [B]


def run(
    target: str, out: Path, minutes: float, data: str | None, seed: int = 0, held_out: float = 0.1,
    words: int | None = None,
) -> card.Report:  # fmt: skip
    """Transcribe in a third of the time, train in most of the rest, and evaluate.

    Args:
        target (str): model to draft for.
        out (Path): folder of the drafter.
        minutes (float): time of the whole run.
        data (str | None): folder of recordings, or one.
        seed (int): seed of the order.
        held_out (float): share of the windows that is not trained on.
        words (int | None): token ids that the head can read; None is `WORDS`.

    Raises:
        DataUnavailable: there are no recordings.
        UnsupportedModel: the target has no encoder beside its decoder.
    """
    recordings = find_recordings(data)
    pipe = load(target, modality="transcription")
    if not isinstance(pipe, WhisperPipeline):
        raise UnsupportedModel(f"a CTC head reads an encoder's output, which {target} splices in; give a Whisper.")
    samples = out / "samples"
    about = {"target": target, "data": data, "seed": seed}
    check_belongs(samples, about)
    begin(samples, about)
    order = random.Random(seed)
    order.shuffle(recordings)
    has_begun = (out / STATE_FILE).exists()  # with the windows that were there then
    heard = transcribe_windows(pipe, recordings, samples, 0.0 if has_begun else minutes * DRAW * 60)
    num_held = max(1, round(held_out * len(heard)))
    held, taught = heard[:num_held], heard[num_held:]
    if not taught:
        raise DataUnavailable(f"{data} holds {len(heard)} windows of speech, which is too few; give more recordings.")
    config = pipe.target_model.config.get_text_config()
    student = CTCModel(config, most_frequent_words(taught, words or WORDS)).to(pipe.device)
    objective = partial(ctc_loss, noise=torch.Generator().manual_seed(seed))
    trials = [build_batch(student, held[start : start + ROWS]) for start in range(0, len(held), ROWS)]

    @torch.no_grad()
    def judge() -> float:
        student.eval()  # without dropout
        loss = statistics.fmean(ctc_loss(student, batch).item() for batch in trials)
        student.train()
        return loss

    made = distil(
        objective, student, random_batches(student, taught, order), minutes=minutes * DISTIL,  # type: ignore[arg-type]
        folder=out, rate=RATE, evaluate=judge,
    )  # fmt: skip
    keep(out / "curve.json", made["curve"])
    keep(out / "fitted.json", {})
    trial = evaluate_drafter(pipe, out, METHOD, [prompt_of(pipe, window) for window in held], minutes * TRY * 60)
    report = card.Report(
        target=target, modality=pipe.card.modality, kind=CTCModel.kind, drafter=str(out), data=data,
        answers=len(taught), held_out=num_held, tokens=sum(len(window.ids) for window in taught), steps=made["step"],
        minutes=made["seconds"] / 60, held_out_loss=judge(), features="kept with the samples",
        peak_bytes=card.peak_memory(pipe.device), trial=trial, source=f"`{data}`",
        load=example(pipe.card, target, {"drafter": str(out), "method": METHOD}, Inputs(reference=str(recordings[0]))),
    )  # fmt: skip
    card.write(report, out)
    return report


def most_frequent_words(windows: list[HeardWindow], number: int) -> list[int]:
    """Return the `number` most frequent token ids of texts, in ascending order."""
    times = Counter(token for window in windows for token in window.ids)
    return sorted(token for token, _ in times.most_common(number))


def build_batch(student: CTCModel, windows: list[HeardWindow]) -> WindowBatch:
    """Return windows as a batch; tokens that the head cannot read are left out of its labels."""
    index = {token: number for number, token in enumerate(student.vocab_subset or [])}
    labels = [[index[token] for token in window.ids if token in index] for window in windows]
    states = [window.heard_states.float() for window in windows]
    return WindowBatch(
        torch.nn.utils.rnn.pad_sequence(states, batch_first=True), torch.tensor([len(row) for row in states]),
        torch.tensor([label for row in labels for label in row], dtype=torch.long),
        torch.tensor([len(row) for row in labels]),
    )  # fmt: skip


def random_batches(student: CTCModel, windows: list[HeardWindow], order: random.Random) -> Iterator[WindowBatch]:
    """Yield endless batches of random windows."""
    while True:
        yield build_batch(student, order.sample(windows, min(ROWS, len(windows))))


def ctc_loss(student: CTCModel, batch: WindowBatch, noise: Any = None) -> Tensor:
    """Return the mean CTC loss per token (Graves et al. 2006).

    Args:
        student (CTCModel): the head.
        batch (WindowBatch): windows.
        noise (Any): generator of noise that is added to the encoder's output; None adds none.
    """
    states = batch.states if noise is None else spoil(batch.states, noise)
    log_probs = student(states.to(student.output.weight)).float().log_softmax(-1).transpose(0, 1)
    lens = (batch.state_lens + student.stride - 1) // student.stride
    return F.ctc_loss(
        log_probs, batch.labels, lens, batch.label_lens, blank=log_probs.shape[2] - 1, zero_infinity=True
    )


def spoil(states: Tensor, generator: torch.Generator) -> Tensor:
    """Return states `[B, S, D]` with noise and with spans of zeros, so that a head does not learn its windows by heart.

    Spans are masked as in SpecAugment (Park et al. 2019, arXiv 1904.08779), in what the encoder heard.
    """
    strength = NOISE * torch.rand((), generator=generator) * states.std()
    spoiled = states + strength * torch.randn(states.shape, generator=generator)
    index = torch.arange(states.shape[1])
    for _ in range(SPANS):
        first = torch.randint(states.shape[1], (len(states), 1), generator=generator)
        span = torch.randint(*SPAN, (len(states), 1), generator=generator)
        spoiled = spoiled.masked_fill(((index >= first) & (index < first + span))[..., None], 0)
    return spoiled
