"""How often the matcher itself is wrong: on rendered scenes that are right, and on such with one planted mistake each.

    python -m polydraft.apps.bench.image.judging.matching --world textured --n 300

Half the pictures are sharp, half as a tokenizer may leave them (blurred, a little noise). Printed are shares of right
pictures that are turned down and of every kind of wrong ones that pass, and the milliseconds of a verdict. "soft" are
right ones through JPEG at quality 60 or a Gaussian blur, in turns.
"""

from __future__ import annotations

import argparse
import io
import time
from collections import Counter

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from polydraft.modalities.world.judging.grounds import worn
from polydraft.modalities.world.judging.mistakes import MISTAKES
from polydraft.modalities.world.scene import place
from polydraft.modalities.world.worlds import WORLDS, World

JPEG, BLUR = 60, 0.8  # quality; pixels
RIGHT = ("right", "soft")


def soft(picture: NDArray[np.uint8], index: int) -> NDArray[np.uint8]:
    """The picture compressed, or blurred."""
    image = Image.fromarray(picture)
    if index % 2:
        return np.asarray(image.filter(ImageFilter.GaussianBlur(BLUR)))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=JPEG)
    return np.asarray(Image.open(file, formats=("JPEG",)))


def measure(world: World, n: int, seed: int = 0, told: bool = False) -> dict[str, tuple[int, int]]:
    """Wrong verdicts and verdicts, on right pictures and on each kind of mistake."""
    rng = np.random.default_rng(seed)
    wrong, seen = Counter[str](), Counter[str]()
    for index in range(n):
        composition = world.composition(rng, held_out=index % 2 == 0)
        scene = place(composition, rng)
        mistake = list(MISTAKES)[index % len(MISTAKES)]
        right = scene.render()
        pictures = {"right": right, mistake: MISTAKES[mistake](composition, scene, rng), "soft": soft(right, index)}
        for name, picture in pictures.items():
            if picture is None:
                continue
            shown = worn(picture, rng) if index // len(MISTAKES) % 2 and name != "soft" else picture
            verdict = world.fidelity(shown, composition)
            seen[name] += 1
            wrong[name] += verdict.ok != (name in RIGHT)
            if told and verdict.ok != (name in RIGHT):
                print(f"{name}: {composition} {scene.objects} found {world.find(shown)} {verdict}", flush=True)
    return {name: (wrong[name], seen[name]) for name in (*RIGHT, *MISTAKES)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", choices=WORLDS, default="textured")
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--told", action="store_true", help="print every wrong verdict")
    args = parser.parse_args()
    begun = time.process_time()
    found = measure(WORLDS[args.world], args.n, args.seed, args.told)
    spent = time.process_time() - begun
    for name, (wrong, seen) in found.items():
        print(f"{name:15} {wrong:4d} wrong of {seen:5d}: {100 * wrong / max(seen, 1):.2f} %")
    wrong, seen = (sum(pair[part] for name, pair in found.items() if name not in RIGHT) for part in (0, 1))
    print(f"{'mistakes':15} {wrong:4d} wrong of {seen:5d}: {100 * wrong / max(seen, 1):.2f} %")
    print(f"{1e3 * spent / (seen + sum(found[name][1] for name in RIGHT)):.0f} ms a picture")


if __name__ == "__main__":
    main()
