"""How often the matcher itself is wrong: on rendered scenes that are right, and on such with one planted mistake each.

    python -m polydraft.apps.bench.image.matching --world textured --n 300

Half the pictures are sharp, half as a tokenizer may leave them (blurred, a little noise). Printed are shares of right
pictures that are turned down and of every kind of wrong ones that pass, and the milliseconds of a verdict.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np

from polydraft.modalities.world.grounds import worn
from polydraft.modalities.world.mistakes import MISTAKES
from polydraft.modalities.world.scene import place
from polydraft.modalities.world.worlds import WORLDS, World


def measure(world: World, n: int, seed: int = 0, told: bool = False) -> dict[str, tuple[int, int]]:
    """Wrong verdicts and verdicts, on right pictures and on each kind of mistake."""
    rng = np.random.default_rng(seed)
    wrong, seen = Counter[str](), Counter[str]()
    for index in range(n):
        composition = world.composition(rng, held_out=index % 2 == 0)
        scene = place(composition, rng)
        mistake = list(MISTAKES)[index % len(MISTAKES)]
        pictures = {"right": scene.render(), mistake: MISTAKES[mistake](composition, scene, rng)}
        for name, picture in pictures.items():
            if picture is None:
                continue
            verdict = world.fidelity(worn(picture, rng) if index // len(MISTAKES) % 2 else picture, composition)
            seen[name] += 1
            wrong[name] += verdict.ok != (name == "right")
            if told and verdict.ok != (name == "right"):
                print(f"{name}: {composition} {scene.objects} found {world.find(picture)} {verdict}", flush=True)
    return {name: (wrong[name], seen[name]) for name in ("right", *MISTAKES)}


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
    wrong, seen = (sum(pair[part] for name, pair in found.items() if name != "right") for part in (0, 1))
    print(f"{'mistakes':15} {wrong:4d} wrong of {seen:5d}: {100 * wrong / max(seen, 1):.2f} %")
    print(f"{1e3 * spent / (seen + found['right'][1]):.0f} ms a picture")


if __name__ == "__main__":
    main()
