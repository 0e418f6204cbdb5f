"""Pipelines over models that the caller has loaded already: `Pipeline.from_model` and `load(model, processor=…)`.

All that a pipeline reads besides weights, configurations and the processor's files, is written to a folder that lives
as long as the pipeline, so that such a model is recognised, checked and described as one from a folder is.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from polydraft.core.errors import InvalidArgument, UnsupportedModel
from polydraft.core.folders.json_files import read_json
from polydraft.modalities.given_drafters import origin_of
from polydraft.modalities.model_card import ModelCard, load_card

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ANSWERING = ("vlm", "transcription")  # modalities whose whole model is one object of transformers


class ModelDescription:
    """Folder with all files of a loaded model but its weights; it is removed with this object.

    Args:
        model (PreTrainedModel): The model.
        processor (Any): Its processor, or the tokenizer of a model of text.

    Raises:
        InvalidArgument: The processor is none.
        UnsupportedModel: The model is of another modality, or of no family that is known.
    """

    def __init__(self, model: PreTrainedModel, processor: Any) -> None:
        if not hasattr(processor, "save_pretrained"):
            raise InvalidArgument(
                f"processor={type(processor).__name__} is no processor of transformers; give the model's processor, or "
                "its tokenizer."
            )
        self.directory: TemporaryDirectory[str] = TemporaryDirectory(prefix="polydraft-")
        folder = Path(self.directory.name)
        copy.deepcopy(model.config).save_pretrained(folder)  # a copy, since saving writes to some of them
        if getattr(model, "generation_config", None) is not None:
            copy.deepcopy(model.generation_config).save_pretrained(folder)
        processor.save_pretrained(folder)
        config = read_json(folder / "config.json") | {"architectures": [type(model).__name__]}
        (folder / "config.json").write_text(json.dumps(config))
        card = load_card(folder)
        if card.modality not in ANSWERING:
            raise UnsupportedModel(
                f"{type(model).__name__} needs more than the model and its processor to generate {card.modality}; give "
                "the folder that it was loaded from."
            )
        self.card: ModelCard = replace(card, name=origin_of(model).name, loaded_model=model)
