"""Assemble trained parts as a model folder.

    python -m polydraft.apps.lab.recipes.assemble runs/tiny-image assets/models/tiny-image

The folder is what `polydraft.load` reads: `polydraft.json`, `target/`, `tokenizer/`, `codec/` or `vae/`, drafters, a
plot of their loss curves for the card, and the card, which a person writes.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from tokenizers import Tokenizer

from polydraft.apps.lab.recipes.speech.corpus.flite import VOICES
from polydraft.core.methods.registry import tuned_methods
from polydraft.modalities.image import code_contents
from polydraft.modalities.image import vocabulary as of_images
from polydraft.modalities.output import write_text
from polydraft.modalities.world.words.captions import plural_synonyms
from polydraft.modalities.world.worlds import FLAT, WORLDS, World

TENSORS = ("model.safetensors", "diffusion_pytorch_model.safetensors", code_contents.FILE)  # what a part may hold
DRAFTERS = {
    kind: f"drafter-{kind}" for kind in ("lm", "eagle", "heads", "hydra", "above", "local", "kangaroo", "block")
}
CURVES = {"target": "nats a token"} | dict.fromkeys(DRAFTERS.values(), "KL to the target, nats a token")
# Sampling of textures: where the next code is open the likeliest few codes make no texture, and where it is not,
# unlikely codes are stains. A plan replaces guidance, which would be a second forward pass.
NATURAL: dict[str, float] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.1, "guidance_scale": 1.0}
# Where the next code is open trees pay and chains do not, and a further level only while it is likely to add a token.
TREE = {"depth": 6, "width": 4, "total": 12}
SURE: dict[str, str | float] = {"rule": "path", "stop": 0.5}
ERRORS = dict.fromkeys(("target", "drafter-lm", "drafter-eagle"), "error of estimates")


def trained_world(runs: Path) -> World:
    """Return the emoji world that the target in `runs` was trained on; the flat one where no file states it."""
    path = runs / "target" / "world.json"
    return WORLDS[json.loads(path.read_text())["world"]] if path.exists() else FLAT


def build_caption_tokenizer(runs: Path) -> Tokenizer:
    return of_images.build_tokenizer(trained_world(runs).vocabulary(), plural_synonyms())


@dataclass(frozen=True)
class ModelLayout:
    """Parts of a model of one modality."""

    marker_part: str  # a part that only this modality has
    manifest: dict[str, Any]  # initial manifest, with draft sizes that were chosen by hand
    write_tokenizer: Callable[[Path, Path], object]  # from the folder of the runs to the target's folder
    methods: tuple[tuple[str, str], ...] = ()  # preferred methods and the kinds of drafter they need, fastest first
    curves: dict[str, str] = field(default_factory=lambda: CURVES)  # title of the curve of each part


LAYOUTS = (
    ModelLayout(
        "tokenizer",
        {
            "format": 1, "modality": "image", "summary": "128x128 scenes of the emoji world, one to three objects",
            "defaults": {
                "method": "jacobi", "temperature": 0.7, "top_k": 4, "top_p": 1.0, "guidance_scale": 1.3,
            },
            "fitted": dict.fromkeys(("eagle2", "eagle2-published"), {"depth": 10, "width": 1}),
        },
        lambda runs, target: of_images.build_image_tokenizer(trained_world(runs)).save(str(target / "tokenizer.json")),
        (("local", "local"),),
    ),
    ModelLayout(
        "vae",
        {
            "format": 1, "modality": "image", "tokens": "latents",
            "summary": "128x128 scenes of the emoji world as latents, one to three objects",
            "defaults": {"method": "jacobi", "temperature": 1.0, "guidance_scale": 1.5},
        },
        lambda runs, target: build_caption_tokenizer(runs).save(str(target / "tokenizer.json")),
        curves=ERRORS,
    ),
    ModelLayout(
        "codec",
        {
            "format": 1, "modality": "speech", "summary": "English in four voices, 50 codes a second",
            "voices": list(VOICES), "voice": "rms",  # understood best
            "defaults": {"method": "jacobi", "temperature": 0.6, "top_k": 20, "top_p": 1.0},
            "fitted": {
                "draft": {"depth": 2, "width": 4, "total": 8},
                **dict.fromkeys(("hydra", "medusa", "vadusa"), {"depth": 4}),
            },
        },
        lambda runs, target: shutil.copy(runs / "target" / "tokenizer.json", target),
        (("hydra", "hydra"),),
    ),
    ModelLayout(
        "processor",
        {
            "format": 1, "modality": "vlm", "summary": "describes emoji scenes and answers about them",
            "context": 464,  # with a large draft one block of keys (`core.model.attention`)
            "defaults": {"method": "pld", "temperature": 0.0},
            "fitted": {
                "draft": {"rule": "path", "stop": 0.4}, "medusa": {"depth": 6}, "hydra": {"depth": 8},
                "eagle2": {"depth": 8, "width": 1, "rule": "path", "stop": 0.4},
                "eagle2-published": {"depth": 8, "width": 1},
            },
        },
        lambda runs, target: shutil.copytree(runs / "processor", target, dirs_exist_ok=True),
        (("hydra", "hydra"), ("eagle2", "eagle")),
    ),
)  # fmt: skip


def assemble(runs: Path, out: Path) -> None:
    """Copy the parts that exist in `runs` to `out`; measured settings in an existing manifest are kept."""
    layout = next(layout for layout in LAYOUTS if (runs / layout.marker_part).is_dir())
    out.mkdir(parents=True, exist_ok=True)
    for part in (layout.marker_part, "target", "head", *DRAFTERS.values(), f"{DRAFTERS['lm']}/head"):
        for tensors in (name for name in TENSORS if (runs / part / name).exists()):
            (out / part).mkdir(exist_ok=True)
            for name in ("config.json", tensors):
                shutil.copyfile(runs / part / name, out / part / name)
    (out / "target").mkdir(exist_ok=True)
    layout.write_tokenizer(runs, out / "target")
    path = out / "polydraft.json"
    manifest = deepcopy({"jacobi_committed": {}, "fitted": {}} | layout.manifest)
    if (world := trained_world(runs)) is not FLAT:
        manifest["world"] = world.name
        manifest["summary"] = "128x128 scenes of the emoji world on colours and in settings, one to three objects"
        manifest["defaults"] |= NATURAL
        manifest["fitted"] |= {"draft": {"width": 2} | SURE, "eagle2": TREE | SURE, "eagle2-published": TREE}
    chosen_params = manifest["fitted"]  # of trees of another shape than fits are of, so they hold
    manifest |= json.loads(path.read_text()) if path.exists() else {}
    for kind, folder in DRAFTERS.items():
        path_of_fit = runs / folder / "fitted.json"
        if path_of_fit.exists():
            fit = json.loads(path_of_fit.read_text())
            manifest["fitted"] = manifest["fitted"] | {
                method: manifest["fitted"].get(method, {}) | fit | chosen_params.get(method, {})
                for method in tuned_methods(kind)
            }
    plot_curves(runs, out / "curves.png", layout.curves)
    manifest["drafters"] = {kind: folder for kind, folder in DRAFTERS.items() if (out / folder).is_dir()}
    if chosen := next((method for method, kind in layout.methods if kind in manifest["drafters"]), None):
        manifest["defaults"] |= {"method": chosen}
    write_text(path, json.dumps(manifest, indent=2) + "\n")


def plot_curves(runs: Path, path: Path, titles: dict[str, str]) -> None:
    """Plot training and held-out loss over time of every part that has a curve."""
    found = [part for part in titles if (runs / part / "curve.json").exists()]
    if not found:
        return
    figure = Figure(figsize=(5 * len(found), 3), layout="constrained")
    for axes, part in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        curve = json.loads((runs / part / "curve.json").read_text())
        minutes = [point["seconds"] / 60 for point in curve]
        for name in ("train", "held_out"):
            axes.plot(minutes, [point[name] for point in curve], marker=".", label=name)
        axes.set(title=f"{part}: {titles[part]}", xlabel="minutes", yscale="log")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    assemble(args.runs, args.out)


if __name__ == "__main__":
    main()
