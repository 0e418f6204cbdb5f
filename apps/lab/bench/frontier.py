"""`polydraft bench frontier`: speedup of lossy rules against prompt fidelity.

polydraft bench frontier --n 200 --temperature 1 --methods "jacobi,lantern(delta=0.2),eagle2+lantern++" -o runs/bench
polydraft bench frontier --n 200 --temperature 1 --world textured -o runs/textured

Every method generates the same held-out captions with the same seeds, a chunk at a time in turns with plain decoding,
so differences are paired: Δ is fidelity minus that of plain decoding, ± its standard error over captions. The first
captions are generated one by one, for S; only they need an otherwise idle machine. The others come in batches: the
tokens are the same.

On settings textures are compared, too (`texture.py`): a method's distance to rendered scenes with that of plain
decoding, and its distance to plain decoding's images with that of two plain runs with different seeds, which is due to
chance alone. The first images of every method are saved as a strip, wrong ones framed red, and `strips.png` has all
strips, a line per method.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

from polydraft.apps.data.captions import OTHERS, held_out, settings, world_of
from polydraft.apps.lab.bench.texture import TextureBench
from polydraft.apps.lab.judging.world_judge import judge_fidelity
from polydraft.apps.measure import plots, report, shares, table
from polydraft.apps.measure.decoding import draw, split
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.terminal.terminal import note
from polydraft.core.methods.naming import split_method, split_part
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.stats import DecodeStats
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.image.result import write_image
from polydraft.modalities.loading import load
from polydraft.modalities.world.scene import Composition
from polydraft.modalities.world.worlds import World

CHUNK = 10  # captions between turns
SHOWN = 8  # images of a strip
MARGIN, LETTERS = 240, 13  # of the sheet of strips, in pixels: room for names, and their height
HEADERS = ["method", "guarantee", "S", "τ", "fidelity", "Δ", "same tokens"]
TEXTURE = ["texture", "of two rendered", "from plain", "of two seeds"]
COLOURS = {"identical": "#2d6ec8", "exact": "#3cb478", "lossy": "#e0782f"}
DEFAULT_METHODS = (  # every drafter, and every lossy rule at its published setting, one with a matching drafter setting
    "jacobi", "sjd", "sjd-maximal", "draft", "draft+sps", "eagle", "eagle+recursive", "eagle2", "eagle2-published",
    "hydra", "above", "local", "pjd", "lantern(k=1000,delta=0.1)", "lantern++(k=10,lam=5)", "gsd(size=25,delta=0.15)",
    "cool-sd(delta=1.5,nu=0.7)", "typical(epsilon=0.09,delta=0.3)",
    "local(window=32,temperature=0.4)+typical(epsilon=0.09,delta=0.3)", "top-k(k=50)", "tolerance(count=2)",
    "ssd(beta=0.4)",
)  # fmt: skip


@dataclass
class MethodResults:
    """Results of one method over all captions."""

    method: str
    guarantee: str = ""
    seconds: list[float] = field(default_factory=list)
    is_correct: list[bool] = field(default_factory=list)
    same_tokens: list[bool] = field(default_factory=list)
    stats: list[DecodeStats] = field(default_factory=list)
    pictures: dict[int, Image.Image] = field(default_factory=dict)  # by seed: all where textures are compared

    def compare_to(self, plain: MethodResults) -> dict[str, Any]:
        gap = np.asarray(self.is_correct, float) - np.asarray(plain.is_correct, float)
        return {
            "method": self.method, "guarantee": self.guarantee, "S": sum(plain.seconds) / sum(self.seconds),
            "tau": DecodeStats.sum_runs(self.stats).mean_accepted_length, "fidelity": float(np.mean(self.is_correct)),
            "delta": float(gap.mean()), "error": float(gap.std() / len(gap) ** 0.5),
            "same": float(np.mean(self.same_tokens)),
        }  # fmt: skip


def run(
    *, n: int, timed: int, methods: str | None, model: str, batch: int, temperature: float | None,
    top_k: int | None, min_p: float | None, guidance_scale: float | None, world: str | None, output: Path | None,
    json: bool,
) -> None:  # fmt: skip
    """Generate, judge, print and, given a folder, save."""
    report.check_folder(output)
    pipe: Any = load(model)
    names = [table.PLAIN, *(name for name in split(methods) or available_default_methods(pipe) if name != table.PLAIN)]
    for name in names:
        pipe.check_method(name)
    points = {name: MethodResults(name) for name in names}
    sampling = settings(pipe, temperature, guidance_scale, top_k, min_p)
    world_of_captions = world_of(pipe, world)
    captions, compositions = held_out(n, world_of_captions)
    judge = partial(run_chunk, pipe, sampling, world_of_captions)
    taken_on = timed_on(pipe.device, pipe.dtype)
    for name in names:  # warm up, and tune what is tuned when first used
        judge(MethodResults(name), captions[:1], compositions[:1], 0, 1)
    for first in sorted({*range(0, timed, CHUNK), *range(timed, n, CHUNK)} & set(range(n))):
        end = min(first + CHUNK, timed if first < timed else n)
        part, together = slice(first, end), 1 if first < timed else batch
        plain_tokens = judge(points[table.PLAIN], captions[part], compositions[part], first, together)
        for name in names[1:]:
            generated = judge(points[name], captions[part], compositions[part], first, together)
            points[name].same_tokens += [torch.equal(a, b) for a, b in zip(generated, plain_tokens, strict=True)]
        points[table.PLAIN].same_tokens += [True] * len(plain_tokens)
        note(f"{min(end, n)}/{n} captions")
    rows = [point.compare_to(points[table.PLAIN]) for point in points.values()]
    if textures := TextureBench(compositions):
        again = MethodResults(table.PLAIN)
        for first in range(0, n, CHUNK):
            part = slice(first, first + CHUNK)
            judge(again, captions[part], compositions[part], OTHERS + first, batch)
        add_texture(textures, rows, list(points.values()), again)
    value = {
        "model": pipe.card.name, "world": world_of_captions.name, "n": n, "timed": min(timed, n), "batch": batch,
        "sampling": asdict(sampling), "rows": rows, "environment": taken_on,
    }  # fmt: skip
    headers = [*HEADERS, *TEXTURE] if "texture" in rows[0] else HEADERS
    sheet = (headers, [cells_of(row) for row in rows])
    report.tell("frontier", value, [sheet], [], lambda: plot_scatter(rows), output, json)
    if output is not None:
        save_strips(list(points.values()), output)


def available_default_methods(pipe: ImagePipeline) -> list[str]:
    """Return the default methods that the model supports."""
    available = pipe.available_methods()
    return [name for name in DEFAULT_METHODS if split_part(split_method(name)[0])[0] in available]


def add_texture(
    textures: TextureBench, rows: list[dict[str, Any]], points: list[MethodResults], again: MethodResults
) -> None:
    """Add the texture of every method to its row; `again` is plain decoding with other seeds."""
    generated = [list(dict(sorted(point.pictures.items())).values()) for point in (*points, again)]
    seeds = textures.distance_between(generated[0], generated[-1])
    for row, pictures in zip(rows, generated, strict=False):
        row["texture"] = textures.measure(pictures) | {
            "from_plain": textures.distance_between(generated[0], pictures), "of_two_seeds": seeds,
        }  # fmt: skip


def save_strips(points: list[MethodResults], folder: Path) -> None:
    """Save the first images of every method, a file each, and one of all."""
    (folder / "strips").mkdir(parents=True, exist_ok=True)
    generated = [build_strip(point) for point in points]
    for number, (point, strip) in enumerate(zip(points, generated, strict=True)):
        slug = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in point.method).strip("_")
        metadata = {"software": "polydraft", "method": point.method}
        write_image(strip, folder / "strips" / f"{number:02d}-{slug}.png", metadata)
    names = ["\n+ ".join(split_method(point.method)) for point in points]  # the rule on a line of its own
    write_image(stack_strips(names, generated), folder / "strips.png", {"software": "polydraft"})


def build_strip(point: MethodResults) -> Image.Image:
    first = sorted(point.pictures)[:SHOWN]
    return shares.sheet([point.pictures[seed] for seed in first], point.is_correct[: len(first)])


def stack_strips(names: list[str], generated: list[Image.Image]) -> Image.Image:
    """Stack strips vertically with their names on the left."""
    step = generated[0].height
    canvas = Image.new("RGB", (MARGIN + generated[0].width, step * len(generated)), "white")
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(LETTERS)
    for row, (name, strip) in enumerate(zip(names, generated, strict=True)):
        pen.multiline_text((LETTERS // 2, row * step + step // 2 - LETTERS), name, fill="#222", font=font)
        canvas.paste(strip, (MARGIN, row * step))
    return canvas


def run_chunk(
    pipe: ImagePipeline, sampling: SamplingParams, world_of_captions: World, point: MethodResults, captions: list[str],
    compositions: list[Composition], seed: int, batch: int,
) -> list[torch.Tensor]:  # fmt: skip
    """Generate and judge a chunk of captions with one method; with a batch of one it is timed."""
    prompts = pipe.build_prompts(captions, [seed + row for row in range(len(captions))], sampling)
    done = draw(pipe, point.method, prompts, batch)
    assert done.stats is not None  # only peers have none
    point.guarantee = done.stats.guarantee
    point.stats.append(done.stats)
    if batch == 1:
        point.seconds.append(done.seconds)
    pictures = pipe.decode_images(pipe.assemble_tokens(prompts, done.outputs))
    point.is_correct += [
        judge_fidelity(world_of_captions, np.asarray(p), wanted).ok
        for p, wanted in zip(pictures, compositions, strict=True)
    ]
    kept = len(pictures) if world_of_captions.settings else max(0, SHOWN - seed)
    point.pictures |= {seed + row: picture for row, picture in enumerate(pictures[:kept])}
    return done.outputs


def cells_of(row: dict[str, Any]) -> list[str]:
    gap = "" if row["method"] == table.PLAIN else f"{row['delta']:+.3f} ± {row['error']:.3f}"
    figures = [f"{row['S']:.2f}", f"{row['tau']:.2f}", f"{row['fidelity']:.3f}", gap, f"{100 * row['same']:.0f} %"]
    if texture := row.get("texture"):
        figures += [f"{texture[name]:.2f}" for name in ("distance", "scale", "from_plain", "of_two_seeds")]
    return [row["method"], row["guarantee"], *figures]


def plot_scatter(rows: list[dict[str, Any]]) -> Image.Image:
    """Plot S against fidelity, coloured by guarantee."""
    figure = Figure(figsize=(9.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for guarantee, colour in COLOURS.items():
        these = [row for row in rows if row["guarantee"] == guarantee]
        axes.scatter([row["S"] for row in these], [row["fidelity"] for row in these], color=colour, label=guarantee)
    for number, row in enumerate(rows, 1):
        side = -11 if number % 2 else 5  # keeps neighbouring labels apart
        dot = (row["S"], row["fidelity"])
        axes.annotate(str(number), dot, textcoords="offset points", xytext=(side, 4), fontsize=8)
    names = "\n".join(f"{number:2d}  {row['method']}" for number, row in enumerate(rows, 1))
    axes.text(1.02, 1.0, names, transform=axes.transAxes, va="top", fontsize=8, linespacing=1.5)
    plain = rows[0]["fidelity"]
    axes.axhspan(plain - 0.02, plain + 0.02, color="#8a8f98", alpha=0.15, label="within 0.02 of plain")
    axes.set(xlabel="S, times plain decoding", ylabel="prompt fidelity")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return plots.rendered(figure)
