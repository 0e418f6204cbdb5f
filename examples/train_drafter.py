"""Train a drafter on your own pictures, questions or texts, and decode with it.

python train_drafter.py my-photos runs/hydra 20                                # minutes
python train_drafter.py questions.txt runs/eagle 60 ./smollm2 eagle            # one question on every line

`polydraft train drafter` does the same on the command line; TRAINING.md lists kinds and forms of data.
"""

import sys
from pathlib import Path

from polydraft import load
from polydraft.apps.train.drafter import run


def main(data: str, out: str, minutes: str = "20", target: str = "tiny-vlm", kind: str = "hydra") -> None:
    report = run(target, kind, Path(out), float(minutes), data=data)
    print(report.line)
    pipe = load(target, drafter=out)
    question = "Describe the picture." if target == "tiny-vlm" else "Why is the sky blue?"
    image = next(iter(sorted(Path(data).glob("*.png"))), None)
    plain, drafted = (pipe(image, question, max_new_tokens=40, speculative=way) for way in (False, True))
    print(f"passes of the model: {plain.stats.target_passes} plain, {drafted.stats.target_passes} drafted")
    print("same answer:", plain.texts == drafted.texts)


if __name__ == "__main__":
    main(*sys.argv[1:])
