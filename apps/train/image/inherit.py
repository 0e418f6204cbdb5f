"""A target of the settings' world begun with what one of the flat world knows: layers, words, and codes translated.

    inherit(model, Path("assets/models/tiny-image"), Path("runs/tiny-image/tokenizer"), of_pictures(EVERYTHING))

A tokenizer that was begun as the elder's has the elder's codes, and they keep their rows. Both see the same scenes: any
other code begins as the mean of the old codes that stood where it stands, in the embedding as in the head; one that no
scene had, as the nearest that some scene had.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from polydraft.apps.train.image.data import encoded, open_tokenizer, packed_scene, to_pixels
from polydraft.core.errors import InvalidArgument
from polydraft.core.folders.door import read_model
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.vq import VQTokenizer
from polydraft.modalities.loading import card
from polydraft.modalities.world.scene import Scene, place
from polydraft.modalities.world.worlds import FLAT, TEXTURED

SCENES, TOGETHER = 3000, 20  # looked at, and at once


def check(elder: Path) -> None:
    """Raises InvalidArgument unless `elder` is a model folder of the flat world with codes of its own."""
    if not (elder / "tokenizer").is_dir() or card(str(elder)).world is not FLAT:
        raise InvalidArgument(f"a target cannot begin as that in {elder}; give a model of the flat world.")


@torch.no_grad()
def inherit(model: LlamaForCausalLM, elder: Path, tokenizer: Path, text: Tokenizer, seed: int = 0) -> None:
    """Begin `model`, which reads `text` and the codes of `tokenizer`, with what the target in the model folder `elder`
    knows; its layers must be as wide and as many."""
    check(elder)
    config, old = model.config, read_model("model", LlamaForCausalLM, elder / "target", dtype=torch.float32)
    if (old.config.hidden_size, old.config.num_hidden_layers) != (config.hidden_size, config.num_hidden_layers):
        raise InvalidArgument(f"a target that begins as that in {elder} needs its width and its number of layers.")
    model.model.layers.load_state_dict(old.model.layers.state_dict())
    model.model.norm.load_state_dict(old.model.norm.state_dict())
    before = vocabulary.load(elder / "target")
    known = {word: index for word, index in before.get_vocab().items() if text.token_to_id(word) is not None}
    here = [text.token_to_id(word) for word in known]
    share = translation(open_tokenizer(elder / "tokenizer"), open_tokenizer(tokenizer), seed)
    tables = (model.model.embed_tokens, old.model.embed_tokens), (model.lm_head, old.lm_head)
    for table, had in tables:
        table.weight[here] = had.weight[list(known.values())]
        table.weight[vocabulary.code_offset(text) :] = share @ had.weight[vocabulary.code_offset(before) :]


@torch.no_grad()
def translation(old: VQTokenizer, new: VQTokenizer, seed: int) -> Tensor:
    """`[N, O]`: what every new code begins as, in shares of the old ones."""
    rng = np.random.default_rng(seed)
    counts = torch.zeros(new.config.codebook_size, old.config.codebook_size)
    for _ in range(SCENES // TOGETHER):
        scenes = [drawn(rng) for _ in range(TOGETHER)]
        pixels = to_pixels([scene.matted() for scene in scenes])
        both = [torch.from_numpy(encoded(vq, pixels)).flatten() for vq in (new, old)]
        counts.index_put_((both[0], both[1]), torch.ones(both[0].shape), accumulate=True)
    seen = counts.sum(1) > 0
    alike = new.codebook.float() @ new.codebook.float().T
    nearest = torch.where(seen, torch.arange(len(seen)), torch.where(seen, alike, -torch.inf).argmax(1))
    share = (counts / counts.sum(1, keepdim=True).clamp(min=1))[nearest]
    same = kept(old, new)
    share[:same] = torch.eye(same, counts.shape[1])
    return share


def kept(old: VQTokenizer, new: VQTokenizer) -> int:
    """How many of the old codes the new tokenizer has, as its first ones: all of them or none."""
    size, spare = old.config.codebook_size, new.config.code_dim - old.config.code_dim
    if spare < 0 or new.config.codebook_size < size:
        return 0
    return size if torch.equal(new.codebook[:size], F.pad(old.codebook, (0, spare))) else 0


def drawn(rng: np.random.Generator) -> Scene:
    """Half of the scenes are flat and full, half are the grammar's and textured."""
    return packed_scene(rng) if rng.random() < 0.5 else place(TEXTURED.composition(rng), rng)
