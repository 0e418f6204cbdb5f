"""`polydraft convert`: published checkpoints that hold pickles, as folders of safetensors and JSON.

polydraft convert mar checkpoint-last.pth --out mar-base
polydraft convert autoencoder kl16.ckpt --out mar-base/vae
polydraft convert chameleon-vq vqgan.ckpt --out Lumina-mGPT-7B-768/vqvae
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Convert published checkpoints to safetensors.")

Checkpoint = Annotated[Path, typer.Argument(help="The downloaded file.")]
Folder = Annotated[Path, typer.Option("--out", "-o", help="Folder to make.")]


@app.callback()
def convert() -> None:
    """Convert published checkpoints to safetensors."""


@app.command("mar")
def mar(checkpoint: Checkpoint, out: Folder) -> None:
    """A checkpoint of github.com/LTH14/mar; no code in it is run."""
    from polydraft.modalities.image.families.mar.config import SIZES
    from polydraft.modalities.image.families.mar.convert import convert

    config = convert(checkpoint, out)
    names = [name for name, published in SIZES.items() if published == config]
    typer.echo(f"{out}; {names[0] if names else 'MAR'}, {config.depth} + {config.depth} blocks of {config.width}")


@app.command("autoencoder")
def autoencoder(checkpoint: Checkpoint, out: Folder) -> None:
    """kl16.ckpt of MAR, or vae/checkpoint.pt of NextStep-1 with its config.json beside; no code in it is run."""
    from polydraft.modalities.image.families.autoencoder import convert

    config = convert(checkpoint, out).config
    factor = 2 ** (len(config.block_out_channels) - 1)
    typer.echo(f"{out}; {config.latent_channels} latents for {factor} by {factor} pixels")


@app.command("chameleon-vq")
def chameleon_vq(checkpoint: Checkpoint, out: Folder) -> None:
    """vqgan.ckpt of github.com/facebookresearch/chameleon; no code in it is run."""
    from polydraft.modalities.image.families.chameleon import vq

    made = vq.convert(checkpoint, out)
    codes, side = made.quantize.num_embeddings, vq.side(made)
    typer.echo(f"{out}; {codes} codes of {made.quantize.embedding_dim} numbers, {side} by {side} pixels each")
