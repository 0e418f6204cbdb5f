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
from polydraft.core.model.mapped_files import copy_mapped
from polydraft.modalities.image.families.nextstep.config import NextStepConfig, read_config
from polydraft.modalities.image.families.nextstep.head import NextStepHead
from polydraft.modalities.image.families.nextstep.schedule import PUBLISHED_SCHEDULES, FlowSchedule
from polydraft.modalities.weights import read_weights

PREFIX = "model."  # of transformers' names, which published names lack
UNUSED = {"gen_pos_embed"}  # a table that some files hold and models that OTHERWISE lets in never read


@dataclass(frozen=True)
class NextStep:
    """Backbone, which reads text and sampled tokens, and head, which samples them."""

    config: NextStepConfig
    backbone: Qwen2ForCausalLM
    head: NextStepHead

    @staticmethod
    def empty(config: NextStepConfig, schedule: FlowSchedule) -> NextStep:
        """Build the model without weights, on the meta device."""
        with torch.device("meta"):
            return NextStep(config, Qwen2ForCausalLM(config.qwen2), NextStepHead(config, schedule))

    @staticmethod
    def from_folder(
        folder: Path, device: torch.device, dtype: torch.dtype, schedule: FlowSchedule | None = None
    ) -> NextStep:
        """Load the model in `folder`.

        Args:
            folder (Path): a published folder.
            device (torch.device): of the weights.
            dtype (torch.dtype): of the weights.
            schedule (FlowSchedule | None): sampling steps; None is the makers'.

        Raises:
            UnsupportedModel: the model computes something that polydraft does not.
            WeightsError: it cannot be loaded.
        """
        config = read_config(folder)
        model = NextStep.empty(config, PUBLISHED_SCHEDULES[config.release] if schedule is None else schedule)
        read_weights("weights", folder, lambda: model.fill(folder, device, dtype))
        rotary = Qwen2RotaryEmbedding(model.backbone.config).to(device)  # its buffers are in no file
        model.backbone.model.rotary_emb = rotary
        for part in (model.backbone, model.head):
            part.eval().requires_grad_(False)
        return model

    def published(self) -> dict[str, Tensor]:
        """Return all tensors under their published names."""
        backbone = {name.removeprefix(PREFIX): tensor for name, tensor in self.backbone.state_dict().items()}
        return backbone | self.head.state_dict()

    def fill(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Load every tensor from the folder's files, one file at a time.

        Raises:
            ValueError: a tensor is missing or has another shape.
        """
        wanted = {name: tensor.shape for name, tensor in self.published().items()}
        head, backbone = self.head.state_dict(), self.backbone.state_dict()
        for path in sorted(folder.glob("*.safetensors")):
            by_part: dict[bool, dict[str, Tensor]] = {True: {}, False: {}}
            with open_tensors(path) as file:
                for name in set(file.keys()) - UNUSED:
                    tensor = file.get_tensor(name)
                    if tensor.shape != wanted.pop(name, None):
                        raise ValueError(f"{name} of shape {tuple(tensor.shape)} does not fit")
                    new_name = name if name in head or name in backbone else PREFIX + name
                    by_part[name in head][new_name] = tensor.to(device, dtype)
            self.head.load_state_dict(by_part[True], strict=False, assign=True)
            self.backbone.load_state_dict(by_part[False], strict=False, assign=True)
        copy_mapped(self.head, self.backbone)
        if wanted:
            raise ValueError(f"{len(wanted)} tensors are missing, the first is {min(wanted)}")
