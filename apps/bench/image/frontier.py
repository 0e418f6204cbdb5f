"""`polydraft bench frontier`: what a lossy rule buys and what it costs, S against prompt fidelity.

polydraft bench frontier --n 200 --temperature 1 --methods "jacobi,lantern(delta=0.2),eagle2+lantern++" -o runs/bench
polydraft bench frontier --n 200 --temperature 1 --world textured -o runs/textured

Every method draws the same held-out captions with the same seeds, a chunk at a time in turns with plain decoding, so
differences are paired: Δ is fidelity less plain's, ± its standard error over captions. The first captions are drawn one
by one, for S; only they need an otherwise idle machine. The others come in batches: the tokens are the same.

On settings textures are compared, too (`texture.py`): a method's distance to rendered scenes stands beside plain
decoding's own, and its distance to plain decoding's pictures beside that of two plain runs with other seeds, which is
what chance alone makes of it. The first pictures of every method are kept as a strip, those that miss framed red, and
`strips.png` has all of them, a line a method.
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

from polydraft.apps.bench.image.judging.texture import TextureBench
from polydraft.apps.bench.image.prompts import OTHERS, held_out, settings, world_of
from polydraft.apps.bench.measure import plots, report, shares, table
from polydraft.apps.bench.measure.decoding import draw, split
from polydraft.apps.bench.measure.environment import timed_on
from polydraft.apps.commands.shared.terminal import note
from polydraft.core.law.sampling import Sampling
from polydraft.core.methods.naming import pieces
from polydraft.core.methods.naming import split as name_of
from polydraft.core.stats import DecodeStats
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.image.result import write_picture
from polydraft.modalities.loading import load
from polydraft.modalities.world.scene import Composition
from polydraft.modalities.world.worlds import World

CHUNK = 10  # captions between turns
SHOWN = 8  # pictures of a strip
MARGIN, LETTERS = 240, 13  # of the sheet of strips, in pixels: room for names, and their height
HEADERS = ["method", "guarantee", "S", "τ", "fidelity", "Δ", "same tokens"]
TEXTURE = ["texture", "of two rendered", "from plain", "of two seeds"]
COLOURS = {"identical": "#2d6ec8", "exact": "#3cb478", "lossy": "#e0782f"}
FIELD = (  # every way to draft, and every lossy rule at its published setting, one with guesses that suit it
    "jacobi", "sjd", "sjd-maximal", "draft", "draft+sps", "eagle", "eagle+recursive", "eagle2", "eagle2-published",
    "hydra", "above", "local", "pjd", "lantern(k=1000,delta=0.1)", "lantern++(k=10,lam=5)", "gsd(size=25,delta=0.15)",
    "cool-sd(delta=1.5,nu=0.7)", "typical(epsilon=0.09,delta=0.3)",
    "local(window=32,temperature=0.4)+typical(epsilon=0.09,delta=0.3)", "top-k(k=50)", "tolerance(count=2)",
    "ssd(beta=0.4)",
)  # fmt: skip


@dataclass
class Point:
    """One method over all captions."""

    method: str
    guarantee: str = ""
    seconds: list[float] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)
    parts: list[DecodeStats] = field(default_factory=list)
    pictures: dict[int, Image.Image] = field(default_factory=dict)  # by seed: all where textures are compared

    def against(self, plain: Point) -> dict[str, Any]:
        gap = np.asarray(self.right, float) - np.asarray(plain.right, float)
        return {
            "method": self.method, "guarantee": self.guarantee, "S": sum(plain.seconds) / sum(self.seconds),
            "tau": DecodeStats.in_sequence(self.parts).mean_accepted_length, "fidelity": float(np.mean(self.right)),
            "delta": float(gap.mean()), "error": float(gap.std() / len(gap) ** 0.5), "same": float(np.mean(self.same)),
        }  # fmt: skip


def run(
    *, n: int, timed: int, methods: str | None, model: str, batch: int, temperature: float | None,
    top_k: int | None, min_p: float | None, guidance_scale: float | None, world: str | None, output: Path | None,
    json: bool,
) -> None:  # fmt: skip
    """Draw, judge, print and, given a folder, save."""
    report.check_folder(output)
    pipe = load(model)
    names = [table.PLAIN, *(name for name in split(methods) or field_of(pipe) if name != table.PLAIN)]
    for name in names:
        pipe.checked(name)
    points = {name: Point(name) for name in names}
    sampling = settings(pipe, temperature, guidance_scale, top_k, min_p)
    among = world_of(pipe, world)
    captions, compositions = held_out(n, among)
    judge = partial(turn, pipe, sampling, among)
    taken_on = timed_on(pipe.device, pipe.dtype)
    for name in names:  # warm up, and fit what is fitted when first used
        judge(Point(name), captions[:1], compositions[:1], 0, 1)
    for first in sorted({*range(0, timed, CHUNK), *range(timed, n, CHUNK)} & set(range(n))):
        end = min(first + CHUNK, timed if first < timed else n)
        part, together = slice(first, end), 1 if first < timed else batch
        plainly = judge(points[table.PLAIN], captions[part], compositions[part], first, together)
        for name in names[1:]:
            drawn = judge(points[name], captions[part], compositions[part], first, together)
            points[name].same += [torch.equal(a, b) for a, b in zip(drawn, plainly, strict=True)]
        points[table.PLAIN].same += [True] * len(plainly)
        note(f"{min(end, n)}/{n} captions")
    rows = [point.against(points[table.PLAIN]) for point in points.values()]
    if textures := TextureBench(compositions):
        again = Point(table.PLAIN)
        for first in range(0, n, CHUNK):
            part = slice(first, first + CHUNK)
            judge(again, captions[part], compositions[part], OTHERS + first, batch)
        compare(textures, rows, list(points.values()), again)
    value = {
        "model": pipe.card.name, "world": among.name, "n": n, "timed": min(timed, n), "batch": batch,
        "sampling": asdict(sampling), "rows": rows, "environment": taken_on,
    }  # fmt: skip
    headers = [*HEADERS, *TEXTURE] if "texture" in rows[0] else HEADERS
    sheet = (headers, [cells_of(row) for row in rows])
    report.tell("frontier", value, [sheet], [], lambda: scatter(rows), output, json)
    if output is not None:
        strips(list(points.values()), output)


def field_of(pipe: ImagePipeline) -> list[str]:
    """What of the field the model can do."""
    able = pipe.available_methods()
    return [name for name in FIELD if name_of(pieces(name)[0])[0] in able]


def compare(textures: TextureBench, rows: list[dict[str, Any]], points: list[Point], again: Point) -> None:
    """Texture of every method, given to its row; again: plain decoding once more, with other seeds."""
    drawn = [list(dict(sorted(point.pictures.items())).values()) for point in (*points, again)]
    seeds = textures.apart(drawn[0], drawn[-1])
    for row, pictures in zip(rows, drawn, strict=False):
        row["texture"] = textures.measured(pictures) | {
            "from_plain": textures.apart(drawn[0], pictures), "of_two_seeds": seeds,
        }  # fmt: skip


def strips(points: list[Point], folder: Path) -> None:
    """The first pictures of every method, a file each, and one of all."""
    (folder / "strips").mkdir(parents=True, exist_ok=True)
    drawn = [strip_of(point) for point in points]
    for number, (point, strip) in enumerate(zip(points, drawn, strict=True)):
        slug = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in point.method).strip("_")
        told = {"software": "polydraft", "method": point.method}
        write_picture(strip, folder / "strips" / f"{number:02d}-{slug}.png", told)
    names = ["\n+ ".join(pieces(point.method)) for point in points]  # a rule below what it judges
    write_picture(lined_up(names, drawn), folder / "strips.png", {"software": "polydraft"})


def strip_of(point: Point) -> Image.Image:
    first = sorted(point.pictures)[:SHOWN]
    return shares.sheet([point.pictures[seed] for seed in first], point.right[: len(first)])


def lined_up(names: list[str], drawn: list[Image.Image]) -> Image.Image:
    """Strips below each other, their names beside them."""
    step = drawn[0].height
    canvas = Image.new("RGB", (MARGIN + drawn[0].width, step * len(drawn)), "white")
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(LETTERS)
    for row, (name, strip) in enumerate(zip(names, drawn, strict=True)):
        pen.multiline_text((LETTERS // 2, row * step + step // 2 - LETTERS), name, fill="#222", font=font)
        canvas.paste(strip, (MARGIN, row * step))
    return canvas


def turn(
    pipe: ImagePipeline, sampling: Sampling, among: World, point: Point, captions: list[str],
    compositions: list[Composition], seed: int, batch: int,
) -> list[torch.Tensor]:  # fmt: skip
    """Draw a chunk with one method and judge it; one by one, it is timed."""
    prompts = pipe.prompts_to_ids(captions, [seed + row for row in range(len(captions))], sampling)
    done = draw(pipe, point.method, prompts, batch)
    assert done.stats is not None  # only peers have none
    point.guarantee = done.stats.guarantee
    point.parts.append(done.stats)
    if batch == 1:
        point.seconds.append(done.seconds)
    pictures = pipe.decode_images(pipe.drawn(prompts, done.outputs))
    point.right += [among.fidelity(np.asarray(p), wanted).ok for p, wanted in zip(pictures, compositions, strict=True)]
    kept = len(pictures) if among.settings else max(0, SHOWN - seed)
    point.pictures |= {seed + row: picture for row, picture in enumerate(pictures[:kept])}
    return done.outputs


def cells_of(row: dict[str, Any]) -> list[str]:
    gap = "" if row["method"] == table.PLAIN else f"{row['delta']:+.3f} ± {row['error']:.3f}"
    figures = [f"{row['S']:.2f}", f"{row['tau']:.2f}", f"{row['fidelity']:.3f}", gap, f"{100 * row['same']:.0f} %"]
    if texture := row.get("texture"):
        figures += [f"{texture[name]:.2f}" for name in ("distance", "scale", "from_plain", "of_two_seeds")]
    return [row["method"], row["guarantee"], *figures]


def scatter(rows: list[dict[str, Any]]) -> Image.Image:
    """S against fidelity, a colour a guarantee."""
    figure = Figure(figsize=(9.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for guarantee, colour in COLOURS.items():
        these = [row for row in rows if row["guarantee"] == guarantee]
        axes.scatter([row["S"] for row in these], [row["fidelity"] for row in these], color=colour, label=guarantee)
    for number, row in enumerate(rows, 1):
        side = -11 if number % 2 else 5  # neighbours keep off each other
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
