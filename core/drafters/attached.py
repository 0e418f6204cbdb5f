"""Networks that read one target's features: each belongs to its target, and is a folder like any other model.

`config.json` holds what the constructor takes and the shape of the target, `model.safetensors` the weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Self

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.errors import UnsupportedMethod
from polydraft.core.kernels import prepare


class Attached(nn.Module):
    """kind: its name in `polydraft train drafter --kind`; title: what messages call it; settings: see above."""

    kind: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, target_config: Any, **settings: Any) -> None:
        super().__init__()
        self.target, self.settings = fingerprint(target_config), settings

    @classmethod
    def from_folder(cls, folder: Path, target: PreTrainedModel) -> Self:
        """Weights written by `save_pretrained`, refused if they were trained for a target of another shape."""
        stored = json.loads((folder / "config.json").read_text())
        wanted = fingerprint(target.config.get_text_config())
        if stored.get("target") != wanted:
            raise UnsupportedMethod(
                f"the {cls.title} in {folder} belongs to a target of {stored.get('target')} and this one is {wanted}; "
                f"train one with `polydraft train drafter --kind {cls.kind}`."
            )
        settings = {name: value for name, value in stored.items() if name not in ("model_type", "target")}
        return cls.filled(target, settings, load_file(folder / "model.safetensors"))

    @classmethod
    def filled(cls, target: PreTrainedModel, settings: dict[str, Any], weights: dict[str, Tensor]) -> Self:
        """Ready to run beside `target`."""
        network = cls(target.config.get_text_config(), **settings).to(target.dtype)
        network.load_state_dict(weights)
        prepare(network.to(target.device))
        return network

    def save_pretrained(self, folder: Path, state_dict: dict[str, Tensor] | None = None) -> None:
        """`model.safetensors` and `config.json`."""
        weights = self.state_dict() if state_dict is None else state_dict
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
        config = {"model_type": f"polydraft-{self.kind}", **self.settings, "target": self.target}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def fingerprint(config: Any) -> dict[str, Any]:
    """What a network and its target must share."""
    return {name: getattr(config, name) for name in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")}


def layers_like(target_config: Any, layers: int, **others: Any) -> Any:
    """The configuration of `layers` layers of the target's own kind, without a vocabulary; others: what differs."""
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    changes: dict[str, Any] = {"num_hidden_layers": layers, "vocab_size": 1, **ids}
    if getattr(target_config, "layer_types", None):
        changes["layer_types"] = ["full_attention"] * layers
    return type(target_config)(**(target_config.to_dict() | changes | others))
