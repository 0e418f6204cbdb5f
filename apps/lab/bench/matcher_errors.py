"""Error rate of the matcher: on correct rendered scenes, and on scenes with one planted mistake each.

    python -m polydraft.apps.lab.bench.matcher_errors --world textured --n 300

Half the images are sharp, half as a tokenizer may leave them (blurred, a little noise). Printed are shares of correct
images that are rejected and of every kind of wrong ones that pass, and the milliseconds per image. "soft" are correct
ones through JPEG at quality 60 or a Gaussian blur, in turns.
"""

from __future__ import annotations

import argparse
import io
import time
from collections import Counter

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from polydraft.apps.lab.judging.backgrounds import degrade_image
from polydraft.apps.lab.judging.mistakes import MISTAKES
from polydraft.apps.lab.judging.world_judge import find_scene, judge_fidelity
from polydraft.modalities.world.scene import place_objects
from polydraft.modalities.world.worlds import WORLDS, World

JPEG, BLUR = 60, 0.8  # quality; pixels
RIGHT = ("right", "soft")


def soften(picture: NDArray[np.uint8], index: int) -> NDArray[np.uint8]:
    """Compress an image with an even index, blur one with an odd index."""
    image = Image.fromarray(picture)
    if index % 2:
        return np.asarray(image.filter(ImageFilter.GaussianBlur(BLUR)))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=JPEG)
    return np.asarray(Image.open(file, formats=("JPEG",)))


def measure(world: World, n: int, seed: int = 0, print_errors: bool = False) -> dict[str, tuple[int, int]]:
    """Count wrong verdicts and all verdicts, on correct images and on each kind of mistake.

    Args:
        world (World): backgrounds of the scenes.
        n (int): number of scenes.
        seed (int): seed of scenes and mistakes.
        print_errors (bool): whether to print every wrong verdict.
    """
    rng = np.random.default_rng(seed)
    wrong, judged = Counter[str](), Counter[str]()
    for index in range(n):
        composition = world.random_composition(rng, held_out=index % 2 == 0)
        scene = place_objects(composition, rng)
        mistake = list(MISTAKES)[index % len(MISTAKES)]
        correct = scene.render()
        pictures = {
            "right": correct,
            mistake: MISTAKES[mistake](composition, scene, rng),
            "soft": soften(correct, index),
        }
        for name, picture in pictures.items():
            if picture is None:
                continue
            degraded = degrade_image(picture, rng) if index // len(MISTAKES) % 2 and name != "soft" else picture
            verdict = judge_fidelity(world, degraded, composition)
            judged[name] += 1
            wrong[name] += verdict.ok != (name in RIGHT)
            if print_errors and verdict.ok != (name in RIGHT):
                print(
                    f"{name}: {composition} {scene.objects} found {find_scene(world, degraded)} {verdict}", flush=True
                )
    return {name: (wrong[name], judged[name]) for name in (*RIGHT, *MISTAKES)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", choices=WORLDS, default="textured")
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--told", dest="print_errors", action="store_true", help="print every wrong verdict")
    args = parser.parse_args()
    start_time = time.process_time()
    found = measure(WORLDS[args.world], args.n, args.seed, args.print_errors)
    spent = time.process_time() - start_time
    for name, (wrong, judged) in found.items():
        print(f"{name:15} {wrong:4d} wrong of {judged:5d}: {100 * wrong / max(judged, 1):.2f} %")
    wrong, judged = (sum(pair[part] for name, pair in found.items() if name not in RIGHT) for part in (0, 1))
    print(f"{'mistakes':15} {wrong:4d} wrong of {judged:5d}: {100 * wrong / max(judged, 1):.2f} %")
    print(f"{1e3 * spent / (judged + sum(found[name][1] for name in RIGHT)):.0f} ms a picture")


if __name__ == "__main__":
    main()
