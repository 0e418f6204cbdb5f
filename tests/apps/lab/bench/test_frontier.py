"""The frontier over textures: distances are reported with those of chance, and strips are saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from polydraft.apps.data.captions import OTHERS
from polydraft.apps.lab.bench.frontier import MethodResults, add_texture, cells_of, save_strips
from polydraft.apps.lab.bench.texture import FEWEST, TextureBench
from polydraft.modalities.world.scene import place_objects
from polydraft.modalities.world.worlds import World

LAWN = World("lawn", ("grass",))


def method_results(name: str, pictures: list[Image.Image], first: int = 0) -> MethodResults:
    return MethodResults(name, "lossy", is_correct=[True] * len(pictures), pictures=dict(enumerate(pictures, first)))


def test_add_texture_damaged_images_exceed_distance_of_seeds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    compositions = [LAWN.random_composition(rng) for _ in range(FEWEST)]
    one, two = ([Image.fromarray(place_objects(wanted, rng).render()) for wanted in compositions] for _ in range(2))
    washed = [picture.filter(ImageFilter.GaussianBlur(3)) for picture in one]
    repeated = [one[0]] * FEWEST
    points = [
        method_results("ar", one),
        method_results("same", one),
        method_results("washed(a=1)", washed),
        method_results("repeated", repeated),
    ]
    rows = [{"method": point.method, "guarantee": "lossy", "S": 1.0, "tau": 1.0, "fidelity": 1.0} for point in points]
    rows = [row | {"delta": 0.0, "error": 0.0, "same": 1.0} for row in rows]
    add_texture(TextureBench(compositions), rows, points, method_results("ar", two, OTHERS))
    plain, same, *damaged = (row["texture"] for row in rows)
    assert abs(same["from_plain"]) < 1e-3 and same["distance"] == plain["distance"]
    assert plain["distance"] < 3 * plain["scale"]  # they are rendered scenes themselves
    for texture in damaged:
        assert texture["from_plain"] > 2 * texture["of_two_seeds"] > 0
        assert texture["distance"] > 2 * plain["distance"]
    assert len(cells_of(rows[0])) == 11
    save_strips(points, tmp_path)
    names = sorted(path.name for path in (tmp_path / "strips").iterdir())
    assert names == ["00-ar.png", "01-same.png", "02-washed_a_1.png", "03-repeated.png"]
    strip, sheet = Image.open(tmp_path / "strips" / names[2]), Image.open(tmp_path / "strips.png")
    assert strip.width > 7 * 128 and sheet.height == len(points) * strip.height
    below = (sheet.width - strip.width, 2 * strip.height, sheet.width, 3 * strip.height)
    assert np.array_equal(sheet.crop(below), strip)
    beside = np.asarray(sheet.convert("L"))[2 * strip.height : 3 * strip.height, : below[0]]
    assert beside.min() < 100  # its name
