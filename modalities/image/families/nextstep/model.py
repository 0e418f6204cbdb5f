"""NextStep in parts: transformers' Qwen2 as the backbone, and the flow head, loaded from the published safetensors.

    model = NextStep.from_folder(Path("NextStep-1.1"), torch.device("cuda"), torch.bfloat16)
    hidden = model.backbone.model(inputs_embeds=...).last_hidden_state
    model.head.condition(hidden)

No code of a repository is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from polydraft.core.folders.weight_files import open_tensors
from polydraft.core.model.mapped import copy_mapped
from polydraft.modalities.image.families.nextstep.config import NextStepConfig, read_config
from polydraft.modalities.image.families.nextstep.head import NextStepHead
from polydraft.modalities.image.families.nextstep.law import PUBLISHED, Law
from polydraft.modalities.loading import read_weights

PREFIX = "model."  # of transformers' names, which published ones lack
UNUSED = {"gen_pos_embed"}  # a table that some files hold and models that OTHERWISE lets in never read


@dataclass(frozen=True)
class NextStep:
    """The backbone, which reads text and drawn tokens, and the head, which draws them."""

    config: NextStepConfig
    backbone: Qwen2ForCausalLM
    head: NextStepHead

    @staticmethod
    def empty(config: NextStepConfig, law: Law) -> NextStep:
        """Without weights, on the meta device."""
        with torch.device("meta"):
            return NextStep(config, Qwen2ForCausalLM(config.qwen2), NextStepHead(config, law))

    @staticmethod
    def from_folder(folder: Path, device: torch.device, dtype: torch.dtype, law: Law | None = None) -> NextStep:
        """The model saved in `folder`; law: its makers' unless given. Raises UnsupportedModel or WeightsError."""
        config = read_config(folder)
        made = NextStep.empty(config, PUBLISHED[config.release] if law is None else law)
        read_weights("weights", folder, lambda: made.fill(folder, device, dtype))
        rotary = Qwen2RotaryEmbedding(made.backbone.config).to(device)  # has buffers that no file holds
        made.backbone.model.rotary_emb = rotary
        for part in (made.backbone, made.head):
            part.eval().requires_grad_(False)
        return made

    def published(self) -> dict[str, Tensor]:
        """All tensors under their published names."""
        backbone = {name.removeprefix(PREFIX): tensor for name, tensor in self.backbone.state_dict().items()}
        return backbone | self.head.state_dict()

    def fill(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Take every tensor from the folder's files, one file at a time; ValueError where any is wrong."""
        wanted = {name: tensor.shape for name, tensor in self.published().items()}
        head, whole = self.head.state_dict(), self.backbone.state_dict()
        for path in sorted(folder.glob("*.safetensors")):
            found: dict[bool, dict[str, Tensor]] = {True: {}, False: {}}
            with open_tensors(path) as file:
                for name in set(file.keys()) - UNUSED:
                    tensor = file.get_tensor(name)
                    if tensor.shape != wanted.pop(name, None):
                        raise ValueError(f"{name} of shape {tuple(tensor.shape)} does not fit")
                    own = name if name in head or name in whole else PREFIX + name
                    found[name in head][own] = tensor.to(device, dtype)
            self.head.load_state_dict(found[True], strict=False, assign=True)
            self.backbone.load_state_dict(found[False], strict=False, assign=True)
        copy_mapped(self.head, self.backbone)
        if wanted:
            raise ValueError(f"{len(wanted)} tensors are missing, the first is {min(wanted)}")
