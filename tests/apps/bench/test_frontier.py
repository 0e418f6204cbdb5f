"""The frontier over textures: distances are told with what chance alone makes of them, and strips are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from polydraft.apps.bench.image.frontier import Point, cells_of, compare, strips
from polydraft.apps.bench.image.judging.texture import FEWEST, TextureBench
from polydraft.apps.bench.image.prompts import OTHERS
from polydraft.modalities.world.scene import place
from polydraft.modalities.world.worlds import World

LAWN = World("lawn", ("grass",))


def drawn(name: str, pictures: list[Image.Image], first: int = 0) -> Point:
    return Point(name, "lossy", right=[True] * len(pictures), pictures=dict(enumerate(pictures, first)))


def test_damage_shows_beside_what_other_seeds_make_of_the_same_captions(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    compositions = [LAWN.composition(rng) for _ in range(FEWEST)]
    one, two = ([Image.fromarray(place(wanted, rng).render()) for wanted in compositions] for _ in range(2))
    washed = [picture.filter(ImageFilter.GaussianBlur(3)) for picture in one]
    repeated = [one[0]] * FEWEST
    points = [drawn("ar", one), drawn("same", one), drawn("washed(a=1)", washed), drawn("repeated", repeated)]
    rows = [{"method": point.method, "guarantee": "lossy", "S": 1.0, "tau": 1.0, "fidelity": 1.0} for point in points]
    rows = [row | {"delta": 0.0, "error": 0.0, "same": 1.0} for row in rows]
    compare(TextureBench(compositions), rows, points, drawn("ar", two, OTHERS))
    plain, same, *damaged = (row["texture"] for row in rows)
    assert abs(same["from_plain"]) < 1e-3 and same["distance"] == plain["distance"]
    assert plain["distance"] < 3 * plain["scale"]  # they are rendered scenes themselves
    for texture in damaged:
        assert texture["from_plain"] > 2 * texture["of_two_seeds"] > 0
        assert texture["distance"] > 2 * plain["distance"]
    assert len(cells_of(rows[0])) == 11
    strips(points, tmp_path)
    names = sorted(path.name for path in (tmp_path / "strips").iterdir())
    assert names == ["00-ar.png", "01-same.png", "02-washed_a_1.png", "03-repeated.png"]
    strip, sheet = Image.open(tmp_path / "strips" / names[2]), Image.open(tmp_path / "strips.png")
    assert strip.width > 7 * 128 and sheet.height == len(points) * strip.height
    below = (sheet.width - strip.width, 2 * strip.height, sheet.width, 3 * strip.height)
    assert np.array_equal(sheet.crop(below), strip)
    beside = np.asarray(sheet.convert("L"))[2 * strip.height : 3 * strip.height, : below[0]]
    assert beside.min() < 100  # its name
