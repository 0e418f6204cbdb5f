"""Processors of vision-language models: what turns a conversation with pictures into ids and pixels.

They are transformers' own, without two of their needs: a video processor, which has no part in this and needs
torchvision, and torchvision itself. Pictures are always prepared by the same backend (PIL), so that an answer does not
depend on what else is installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoImageProcessor, AutoTokenizer
from transformers.models.auto.auto_mappings import PROCESSOR_MAPPING_NAMES
from transformers.processing_utils import ProcessorMixin

from polydraft.core.errors import WeightsError
from polydraft.modalities.hub import said
from polydraft.modalities.vlm.image_bounds import bounded

SAID_IN = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


class PixtralProcessor(ProcessorMixin):
    """As transformers' class of that name, whose file cannot be imported without torchvision."""

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, patch_size: int = 16, spatial_merge_size: int = 1,
        chat_template: str | None = None, image_token: str = "[IMG]", image_break_token: str = "[IMG_BREAK]",
        image_end_token: str = "[IMG_END]", **others: Any,
    ) -> None:  # fmt: skip
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.patch_size = patch_size * spatial_merge_size
        self.image_token, self.image_break_token, self.image_end_token = image_token, image_break_token, image_end_token
        tokens = [image_token, image_break_token, image_end_token]
        self.image_token_ids = tokenizer.convert_tokens_to_ids(tokens)

    def _process_images(self, images: Any, **options: Any) -> Any:
        return super()._process_images(images, **options | {"patch_size": self.patch_size})

    def replace_image_token(self, image_inputs: Any, image_idx: int, **others: Any) -> str:
        """Rows of patches, each ended by a break, the last by the end."""
        height, width = (int(side) // self.patch_size for side in image_inputs["image_sizes"][image_idx])
        rows = [self.image_token * width] * height
        return self.image_break_token.join(rows) + self.image_end_token


def load_processor(folder: Path, model_type: str) -> Any:
    """The processor of the model in `folder`; raises what transformers raises."""
    name = next(filter(None, (said(folder / file).get("processor_class") for file in SAID_IN)), None)
    return still(name or str(PROCESSOR_MAPPING_NAMES.get(model_type)), folder).from_pretrained(folder, **SAFELY)


SAFELY: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def still(name: str, folder: Path) -> Any:
    """The processor class `name`, for pictures that do not move; raises WeightsError if there is none."""
    import transformers

    kind: Any = PixtralProcessor if name == PixtralProcessor.__name__ else getattr(transformers, name, None)
    if not isinstance(kind, type) or not issubclass(kind, ProcessorMixin):
        raise WeightsError(
            f"the model in {folder} asks for the processor {name!r}, which transformers {transformers.__version__} "
            "does not have; install a transformers that has it, or correct processor_class in processor_config.json."
        )

    class Still(kind):
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument_name == "video_processor":
                return type(argument)
            return super().check_argument_for_proper_class(argument_name, argument)

        @classmethod
        def _get_arguments_from_pretrained(cls, folder: Any, processor_dict: Any = None, **others: Any) -> list[Any]:
            parts = {
                "image_processor": bounded(AutoImageProcessor.from_pretrained(folder, backend="pil", **SAFELY)),
                "tokenizer": AutoTokenizer.from_pretrained(folder, **SAFELY),
                "video_processor": None,
            }
            return [parts[part] for part in cls.get_attributes()]

    return Still
