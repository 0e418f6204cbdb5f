"""`assemble` copies the parts of the latent model to where `polydraft.load` reads them."""

from __future__ import annotations

import json
from pathlib import Path

from polydraft.apps.lab.recipes.assemble import assemble

PARTS = {
    "vae": "diffusion_pytorch_model.safetensors", "target": "model.safetensors", "head": "model.safetensors",
    "drafter-lm": "model.safetensors", "drafter-lm/head": "model.safetensors",
}  # fmt: skip


def test_assemble_copies_all_parts_of_latent_model(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "model"
    for part, weights in PARTS.items():
        (runs / part).mkdir(parents=True)
        (runs / part / "config.json").write_text("{}")
        (runs / part / weights).write_bytes(part.encode())
    (runs / "target" / "curve.json").write_text("[]")
    (runs / "drafter-eagle").mkdir()  # begun, and nothing saved
    assemble(runs, out)
    manifest = json.loads((out / "polydraft.json").read_text())
    assert manifest["modality"] == "image" and manifest["tokens"] == "latents"
    assert manifest["drafters"] == {"lm": "drafter-lm"} and (out / "target" / "tokenizer.json").exists()
    assert all((out / part / weights).read_bytes() == part.encode() for part, weights in PARTS.items())
    assert not (out / "drafter-eagle").exists() and not (out / "target" / "curve.json").exists()
