"""Generate training samples of drafters with the target.

    python -m polydraft.apps.lab.recipes.speech.target_samples --runs runs/tiny-speech --sentences 20000

Training sentences in all voices are sampled with the model's default parameters; every batch is a file in
`<runs>/samples`, so an interrupted run resumes with the next.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from polydraft.apps.data import built_in_prompts
from polydraft.apps.data.samples import Samples
from polydraft.apps.train.answers import begin, check_belongs
from polydraft.core.methods.registry import parse
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.loading import load


def run(runs: Path, sentences: int, minutes: float, seed: int = 0) -> int:
    """Generate with `runs/model` until there are `sentences`, or for `minutes`; return how many there are."""
    name, folder = str(runs / "model"), runs / "samples"
    about = {"target": name, "seed": seed}
    check_belongs(folder, about)
    begin(folder, about)
    pipe = load(name, modality="speech")
    lessons, samples = built_in_prompts.SpeechPrompts(pipe, seed), Samples(pipe.target(), folder)

    def group(index: int) -> list[PromptInputs]:
        return lessons.prompts(index) if len(samples) < sentences else []

    samples.draw(pipe.method(parse("ar")), group, "taught", minutes * 60)
    print(f"{len(samples)} sentences written, {sum(map(len, samples.outputs))} codes", flush=True)
    return len(samples)


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--seed", type=int, default=0)
    run(**vars(parser.parse_args()))
