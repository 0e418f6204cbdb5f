"""`polydraft bench speech`: every method beside plain decoding and transformers' `generate`, in turns, in one process.

polydraft bench speech --timed 10 --repeats 3 --sentences 100 -o runs/bench
polydraft bench speech --data lines.jsonl --model ./my-voice --drafter runs/hydra

Speed is that of `pipe.stream`, sentence by sentence, voices in turns. S is decode time a code of the faster baseline
(plain decoding or `generate`, prefill apart) over the method's; RTF is seconds spent a second of speech, of decoding
alone and with the codec; "first" is the wait for the first sound. Quality is over `--sentences` everyday sentences a
voice, and over `--prose` passages of mixed prose (`prose.py`): word errors by voice and by kind, of every recogniser
that listens, paired with plain decoding's (Δ, ± its standard error), the log-mel distance to the voice the model was
trained on saying the same, where flite is installed, and the share of sentences whose spectra are nearest to the
voice that was asked for. What a method says in plain decoding's tokens is not judged twice. Beside methods stand
flite on the same normalised text, and its speech through the vocoder alone and through the codec alone. What a
listener notices besides words (`product.py`) is a table by voice, of mixed prose if there is some. Texts of the user's
are timed, all by default; so many of them as `--sentences` asks for are judged too, as English.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from polydraft.apps.bench.speech import intelligibility, product, speed
from polydraft.apps.bench.speech.prose import passages
from polydraft.apps.bench.speech.references import RENDERER
from polydraft.apps.data.sentences.sentences import everyday_sentences
from polydraft.apps.data.user_requests import (
    BenchUtterance,
    check_speech_requests,
    read_speech_requests,
    with_voices,
)
from polydraft.apps.measure import plots, report, table
from polydraft.apps.measure.decoding import asked_for
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.peers.baseline import beyond
from polydraft.core.errors import InvalidArgument, UnsupportedModel
from polydraft.modalities.loading import load

JUDGED, TIMED = 25, 8  # sentences and passages a voice, and sentences, where the user gives no data and no number


def run(
    *, data: str | None = None, sentences: int | None, prose: int | None, timed: int | None, repeats: int,
    methods: str | None, model: str, drafter: list[str] | None = None, temperature: float | None, top_k: int | None,
    peers: bool, recogniser: str | None, squim: bool, output: Path | None, json: bool, device: str = "auto",
    dtype: str = "auto",
) -> None:  # fmt: skip
    """Measure, judge, print and, given a folder, save. data: the user's own texts, in place of sentences and prose."""
    report.check_folder(output)
    if data is not None and prose:
        raise InvalidArgument("--prose is about built-in passages; with --data leave it out, and give --sentences.")
    judged = 0 if data is not None else JUDGED
    sentences, prose = judged if sentences is None else sentences, judged if prose is None else prose
    requests = built_in_requests(timed or TIMED) if data is None else read_speech_requests(data, timed)
    ears = intelligibility.recognisers(recogniser) if sentences or prose or recogniser is not None else {}
    more = intelligibility.others(ears, squim)
    pipe = load(model, drafter=drafter, modality="speech", device=device, dtype=dtype)
    if pipe.family.no_audio_reason:
        raise UnsupportedModel(pipe.family.no_audio_reason)
    names = asked_for(methods, pipe)
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k}
    requests = with_voices(pipe, requests)
    check_speech_requests(pipe, requests, table.PLAIN, options)
    if data is not None and sentences and not pipe.voices:
        raise InvalidArgument(f"{pipe.card.name} has no voices of its own to judge; leave --sentences out.")
    taken_on = timed_on(pipe.device, pipe.dtype)
    rows, notes = speed.measure(pipe, names, requests, repeats, options, peers)
    mixed = passages(prose)
    judged_texts = everyday_sentences() if data is None else [request.text for request in requests]
    texts = {"quality": judged_texts[:sentences], "prose": [passage.text for passage in mixed]}
    kinds: dict[str, list[str]] = {"quality": [], "prose": [passage.kind for passage in mixed]}
    found = {
        name: intelligibility.judged(pipe, names, asked, options, ears, more, kinds[name])
        for name, asked in texts.items() if asked
    }  # fmt: skip
    quality = {name: found[name].rows if name in found else [] for name in texts}
    noticed = next((found[name].product for name in ("prose", "quality") if name in found), [])
    value: dict[str, Any] = {
        "model": pipe.card.name, "data": data, "timed": len(requests), "repeats": repeats,
        "sentences": len(texts["quality"]), "passages": prose, "notes": notes,
        "sampling": asdict(pipe.sampling_params(**options)), "environment": taken_on, "speed": rows,
        **quality, "product": noticed,
    }  # fmt: skip
    sheets = [(speed.HEADERS, [speed.cells(row) for row in rows])]
    sheets += [
        (intelligibility.headers(rated), [intelligibility.cells(row) for row in rated])
        for rated in quality.values() if rated
    ]  # fmt: skip
    if noticed:
        sheets.append((product.HEADERS, [product.cells(row) for row in noticed]))
    report.tell("speech", value, sheets, notes, lambda: picture(rows, quality["quality"]), output, json)
    report.check_promises(
        (row["method"] for row in rows if row["guarantee"] == "identical" and row["same"] is False),
        (row["method"] for row in rows if beyond(row["efficiency"])),
    )


def built_in_requests(count: int) -> list[BenchUtterance]:
    """Return everyday sentences to speak."""
    return [BenchUtterance(text, seed) for seed, text in enumerate(everyday_sentences()[:count])]


def picture(timed: list[dict[str, Any]], quality: list[dict[str, Any]]) -> Image.Image:
    """Plot S inside τ on the left and, if word errors were counted, S against them on the right."""
    figure = Figure(figsize=(11, 1.2 + 0.34 * len(timed)), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [row["method"] for row in timed]
    left.barh(names, [row["tau"] or 0 for row in timed], 0.75, color=plots.COLOURS["tau"], label="τ, tokens a pass")
    left.barh(names, [row["S"] for row in timed], 0.4, color=plots.COLOURS["S"], label="S, times the baseline")
    left.axvline(1, color="#8a8f98", linewidth=1)
    left.invert_yaxis()
    left.legend(frameon=False, fontsize=8)
    rates = {row["method"]: row["wer"] for row in quality}
    for row in timed:
        if row["method"] in rates:
            right.scatter(row["S"], rates[row["method"]], color=plots.COLOURS["S"])
            right.annotate(row["method"], (row["S"], rates[row["method"]]), fontsize=7)
    if RENDERER in rates:
        right.axhline(rates[RENDERER], color="#8a8f98", linewidth=1, label="the voices it learnt from")
        right.legend(frameon=False, fontsize=8)
    right.set(xlabel="S, times the baseline", ylabel="word error rate", ylim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return plots.rendered(figure)
