"""Train a CTC head for a model that transcribes: `polydraft train drafter --target whisper-base --kind ctc`.

The target transcribes windows of the user's recordings, greedily and without timestamps; its own text is what the head
learns to read off its encoder's output, so recordings need no texts. Windows that have been transcribed are kept in
`--out`, and a stopped run resumes with them.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from polydraft.apps.terminal.terminal import note
from polydraft.apps.terminal.usage import Inputs, example
from polydraft.apps.train import card
from polydraft.apps.train.answers import begin, check_belongs, keep
from polydraft.apps.train.evaluation import evaluate_drafter
from polydraft.core.decode import decode, start_batch
from polydraft.core.distillation.distill import distil
from polydraft.core.drafters.heads.ctc import CTCModel
from polydraft.core.errors import DataUnavailable, PromptError, UnsupportedModel
from polydraft.core.folders.weight_files import read_tensors
from polydraft.core.methods.registry import parse
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.encoder_decoder import ENCODER_INPUT, EncoderInput
from polydraft.modalities.loading import load
from polydraft.modalities.output import write_tensors
from polydraft.modalities.transcription.pipeline import THRESHOLDS, WhisperPipeline
from polydraft.modalities.transcription.segments import compression_ratio

DRAW, DISTIL, TRY = 0.35, 0.6, 0.05  # of the minutes given
TOGETHER = 8  # windows that are transcribed together
ROWS = 8  # windows of a step
WORDS = 6000  # token ids that the head can read, the most frequent ones
NOISE = 0.02  # of the encoder's output in a step, relative to its spread
RATE = 2e-3
METHOD = "ctc"


@dataclass(frozen=True)
class HeardWindow:
    """A window of sound and the target's text."""

    states: Tensor  # [S, D] encoder output
    ids: list[int]  # of the text


@dataclass(frozen=True)
class WindowBatch:
    """Windows of a training step."""

    states: Tensor  # [B, S, D]
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
    heard = transcribe_windows(pipe, recordings, samples, minutes * DRAW * 60)
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
        return statistics.fmean(ctc_loss(student, batch).item() for batch in trials)

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


def find_recordings(data: str | None) -> list[Path]:
    """Return the files of a folder and its subfolders, or the file itself; raise DataUnavailable for none."""
    if data is None:
        raise DataUnavailable("a CTC head learns from recordings; give a folder of them with --data.")
    given = Path(data)
    files = sorted(file for file in given.rglob("*") if file.is_file()) if given.is_dir() else [given]
    if not files or not files[0].exists():
        raise DataUnavailable(f"{data} holds no recordings; give a folder of sound files.")
    return files


def transcribe_windows(
    pipe: WhisperPipeline, recordings: list[Path], samples: Path, seconds: float
) -> list[HeardWindow]:
    """Return windows that have been transcribed earlier, and others that are transcribed in `seconds`."""
    files = sorted(samples.glob("*.safetensors"))
    heard = [window for file in files for window in read_windows(file)]
    windows, groups = encoder_inputs(pipe, recordings, skip=len(files) * TOGETHER), count(len(files))
    ar, spent = pipe.method(parse("ar")), 0.0
    with tqdm(total=round(seconds), unit="s", desc="transcribe") as bar:
        while spent < seconds and (group := [given for _, given in zip(range(TOGETHER), windows, strict=False)]):
            batch = start_batch(ar, [prompt_of(pipe, given) for given in group])
            for _ in decode(ar, batch):
                pass
            spent += batch.timer.seconds["prefill"] + batch.timer.decode_seconds
            new = [
                HeardWindow(given.states, [token for token in ids.tolist() if token < pipe.control_tokens.end])
                for given, ids in zip(group, batch.outputs(), strict=True)
                if given.states is not None and not repeats_itself(ids.tolist(), pipe)
            ]
            write_windows(samples / f"{next(groups):05}.safetensors", new)
            heard += new
            bar.update(min(round(spent), round(seconds)) - round(bar.n))
    return heard


def repeats_itself(ids: list[int], pipe: WhisperPipeline) -> bool:
    """Return whether a text is one that transcripts are not made of."""
    most = THRESHOLDS.compression_ratio
    return most is not None and compression_ratio(ids, pipe.token_mask.shape[1]) > most


def encoder_inputs(pipe: WhisperPipeline, recordings: list[Path], skip: int) -> Iterator[EncoderInput]:
    """Yield the windows of recordings one after the other, without the first `skip`; what is no sound is noted."""
    for file in recordings:
        try:
            features = pipe.read_sound(file)
        except PromptError as error:
            note(f"note: {error}")
            continue
        with features:
            for first in range(0, features.num_frames, pipe.window_frames):
                if skip > 0:
                    skip -= 1
                    continue
                yield pipe.encoder_input(features, first, min(pipe.window_frames, features.num_frames - first))


def prompt_of(pipe: WhisperPipeline, window: EncoderInput | HeardWindow) -> PromptInputs:
    """Return the prompt for a greedy transcript of a window without timestamps."""
    given = EncoderInput(torch.empty(0), window.states) if isinstance(window, HeardWindow) else window
    ids = pipe.sample_prompts()[0].branch_token_ids
    return PromptInputs(
        ids, pipe.context_len - len(ids[0]), model_kwargs={ENCODER_INPUT: given},
        sampling_params=pipe.sampling_params(temperature=0.0),
    )  # fmt: skip


def write_windows(file: Path, windows: list[HeardWindow]) -> None:
    """Write windows to a file."""
    tensors = {f"states.{index}": window.states.contiguous() for index, window in enumerate(windows)}
    tensors |= {f"ids.{index}": torch.tensor(window.ids, dtype=torch.long) for index, window in enumerate(windows)}
    write_tensors(file, tensors)


def read_windows(file: Path) -> list[HeardWindow]:
    """Return the windows of a file."""
    tensors = read_tensors(file)
    count = sum(name.startswith("states.") for name in tensors)
    return [HeardWindow(tensors[f"states.{index}"], tensors[f"ids.{index}"].tolist()) for index in range(count)]


def most_frequent_words(windows: list[HeardWindow], number: int) -> list[int]:
    """Return the `number` most frequent token ids of texts, in ascending order."""
    times = Counter(token for window in windows for token in window.ids)
    return sorted(token for token, _ in times.most_common(number))


def build_batch(student: CTCModel, windows: list[HeardWindow]) -> WindowBatch:
    """Return windows as a batch; tokens that the head cannot read are left out of its labels."""
    index = {token: number for number, token in enumerate(student.vocab_subset or [])}
    labels = [[index[token] for token in window.ids if token in index] for window in windows]
    return WindowBatch(
        torch.stack([window.states for window in windows]).float(),
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
    states = batch.states
    if noise is not None:
        states = states + NOISE * states.std() * torch.randn(states.shape, generator=noise)
    log_probs = student(states.to(student.output.weight)).float().log_softmax(-1).transpose(0, 1)
    lens = torch.full((len(states),), len(log_probs))
    return F.ctc_loss(
        log_probs, batch.labels, lens, batch.label_lens, blank=log_probs.shape[2] - 1, zero_infinity=True
    )
