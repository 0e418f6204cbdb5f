"""Let the target write what its drafters finish on.

    python -m polydraft.apps.train.speech.writing --runs runs/tiny-speech --sentences 20000

Training sentences in all voices, sampled as the model does by default, a batch at a time; every batch is a file in
`<runs>/samples`, so a run that was stopped goes on with the next.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from polydraft.apps.train import lessons
from polydraft.apps.train.drafter import begin, check_belongs
from polydraft.apps.train.samples import Samples
from polydraft.core.methods.registry import parse
from polydraft.core.target import Prompt
from polydraft.modalities.loading import load


def run(runs: Path, sentences: int, minutes: float, seed: int = 0) -> int:
    """Until there are `sentences`, or for `minutes`; how many there are. `runs/model` is the model that writes."""
    name, folder = str(runs / "model"), runs / "samples"
    about = {"target": name, "seed": seed}
    check_belongs(folder, about)
    begin(folder, about)
    pipe = load(name, modality="speech")
    asked, written = lessons.SpeechLessons(pipe, seed), Samples(pipe.target(), folder)

    def group(index: int) -> list[Prompt]:
        return asked.prompts(index) if len(written) < sentences else []

    written.draw(pipe.method(parse("ar")), group, "taught", minutes * 60)
    print(f"{len(written)} sentences written, {sum(map(len, written.outputs))} codes", flush=True)
    return len(written)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--seed", type=int, default=0)
    run(**vars(parser.parse_args()))
