"""Initialise a target of the settings' world from one of the flat world: layers, words, and translated codes.

    init_from_flat_model(model, Path("assets/models/tiny-image"), Path("runs/tiny-image/tokenizer"), text)

A tokenizer that was initialised from the flat one has its codes, and they keep their rows. Both encode the same scenes:
rows of any other code are initialised as the mean of the old codes that occur where it occurs, in the embedding and in
the head; a code that no scene has, as the nearest that some scene has.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from polydraft.apps.lab.recipes.image.data import encode_images, images_to_tensor, load_vq_tokenizer, packed_scene
from polydraft.core.errors import InvalidArgument
from polydraft.core.folders.readers import read_model
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.model_card import load_card
from polydraft.modalities.world.scene import Scene, place_objects
from polydraft.modalities.world.worlds import FLAT, TEXTURED

SCENES, TOGETHER = 3000, 20  # in all, and encoded at once


def check_flat_model(elder: Path) -> None:
    """Raise InvalidArgument unless `elder` is a model folder of the flat world with its own tokenizer."""
    if not (elder / "tokenizer").is_dir() or load_card(str(elder)).world is not FLAT:
        raise InvalidArgument(f"a target cannot begin as that in {elder}; give a model of the flat world.")


@torch.no_grad()
def init_from_flat_model(model: LlamaForCausalLM, elder: Path, tokenizer: Path, text: Tokenizer, seed: int = 0) -> None:
    """Initialise a model from the target of a flat model.

    Args:
        model (LlamaForCausalLM): model with as many layers of the num_shared width; it is changed in place.
        elder (Path): model folder of the flat world.
        tokenizer (Path): folder of the tokenizer whose codes `model` reads.
        text (Tokenizer): vocabulary of `model`.
        seed (int): seed of the scenes.

    Raises:
        InvalidArgument: `elder` is no flat model, or its target has another shape.
    """
    check_flat_model(elder)
    config, old = model.config, read_model("model", LlamaForCausalLM, elder / "target", dtype=torch.float32)
    if (old.config.hidden_size, old.config.num_hidden_layers) != (config.hidden_size, config.num_hidden_layers):
        raise InvalidArgument(f"a target that begins as that in {elder} needs its width and its number of layers.")
    model.model.layers.load_state_dict(old.model.layers.state_dict())
    model.model.norm.load_state_dict(old.model.norm.state_dict())
    before = vocabulary.load_tokenizer(elder / "target")
    known = {word: index for word, index in before.get_vocab().items() if text.token_to_id(word) is not None}
    here = [text.token_to_id(word) for word in known]
    share = code_translation(load_vq_tokenizer(elder / "tokenizer"), load_vq_tokenizer(tokenizer), seed)
    tables = (model.model.embed_tokens, old.model.embed_tokens), (model.lm_head, old.lm_head)
    for table, old_table in tables:
        table.weight[here] = old_table.weight[list(known.values())]
        table.weight[vocabulary.code_offset(text) :] = share @ old_table.weight[vocabulary.code_offset(before) :]


@torch.no_grad()
def code_translation(old: VQTokenizer, new: VQTokenizer, seed: int) -> Tensor:
    """Return weights [N, O] of the old codes whose mean every new code is initialised with."""
    rng = np.random.default_rng(seed)
    counts = torch.zeros(new.config.codebook_size, old.config.codebook_size)
    for _ in range(SCENES // TOGETHER):
        scenes = [sample_scene(rng) for _ in range(TOGETHER)]
        pixels = images_to_tensor([scene.render_on_matte() for scene in scenes])
        new_and_old = [torch.from_numpy(encode_images(vq, pixels)).flatten() for vq in (new, old)]
        counts.index_put_((new_and_old[0], new_and_old[1]), torch.ones(new_and_old[0].shape), accumulate=True)
    seen = counts.sum(1) > 0
    similarity = new.codebook.float() @ new.codebook.float().T
    nearest = torch.where(seen, torch.arange(len(seen)), torch.where(seen, similarity, -torch.inf).argmax(1))
    share = (counts / counts.sum(1, keepdim=True).clamp(min=1))[nearest]
    num_shared = num_shared_codes(old, new)
    share[:num_shared] = torch.eye(num_shared, counts.shape[1])
    return share


def num_shared_codes(old: VQTokenizer, new: VQTokenizer) -> int:
    """Return how many of the old codes are the first codes of the new tokenizer: all of them or none."""
    size, spare = old.config.codebook_size, new.config.code_dim - old.config.code_dim
    if spare < 0 or new.config.codebook_size < size:
        return 0
    return size if torch.equal(new.codebook[:size], F.pad(old.codebook, (0, spare))) else 0


def sample_scene(rng: np.random.Generator) -> Scene:
    """Sample a scene: half are flat and packed, half are textured and from the grammar."""
    return packed_scene(rng) if rng.random() < 0.5 else place_objects(TEXTURED.random_composition(rng), rng)
