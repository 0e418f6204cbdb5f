"""Generate an image by plain decoding and by drafting, and show that the seed alone decides what it is.

python draw.py "a panda to the left of a rocket on a yellow background" panda.png
"""

import sys

from polydraft import generate_image


def main(prompt: str = "two frogs on a blue background", file: str = "frogs.png") -> None:
    plain = generate_image(prompt, seed=7, speculative=False)
    drafted = generate_image(prompt, seed=7)
    drafted.save(file)
    print(f"{file}: {drafted.captions[0]}")
    print(f"passes of the model: {plain.stats.target_passes} plain, {drafted.stats.target_passes} drafted")
    print("same image:", plain.image.tobytes() == drafted.image.tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
