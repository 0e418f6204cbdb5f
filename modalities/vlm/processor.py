"""Processors of vision-language models: what turns a conversation with pictures into ids and pixels.

They are transformers' own, without three of their needs: processors of video and of sound, which have no part in this,
and torchvision. Pictures are always prepared by the same backend (PIL), so that an answer does not depend on what else
is installed; only families that have no such backend need torchvision.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from transformers import AutoImageProcessor, AutoTokenizer
from transformers.models.auto.auto_mappings import PROCESSOR_MAPPING_NAMES
from transformers.processing_utils import ProcessorMixin
from transformers.utils.import_utils import is_torchvision_available

from polydraft.core.errors import MissingPackage, WeightsError
from polydraft.core.folders.door import read_pretrained
from polydraft.core.folders.fields import Range, check_fields
from polydraft.core.folders.json_files import is_present
from polydraft.modalities.hub import said
from polydraft.modalities.vlm.image_bounds import bounded

PREPROCESSOR = "preprocessor_config.json"
SAID_IN = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")

NONE = type(None)
FLAG, COUNT, SIZE = (bool, NONE), (Range(int, 0), NONE), (Range(int, 1), list[int], dict, NONE)
NUMBERS, TOKEN = (Range(float, -math.inf), list[float], NONE), (str, dict, NONE)
FIELDS: dict[str, Any] = {  # of any of these files, as far as processors have them in common
    "processor_class": (str, NONE), "image_processor_type": (str, NONE), "tokenizer_class": (str, NONE),
    "do_resize": FLAG, "do_rescale": FLAG, "do_normalize": FLAG, "do_center_crop": FLAG, "do_convert_rgb": FLAG,
    "do_pad": FLAG, "do_image_splitting": FLAG, "size": SIZE, "crop_size": SIZE, "image_mean": NUMBERS,
    "image_std": NUMBERS, "rescale_factor": NUMBERS, "patch_size": SIZE, "merge_size": (Range(int, 1), NONE),
    "temporal_patch_size": (Range(int, 1), NONE), "min_pixels": COUNT, "max_pixels": COUNT,
    "num_additional_image_tokens": COUNT, "image_seq_len": COUNT, "image_seq_length": COUNT,
    "spatial_merge_size": (Range(int, 1), NONE), "vision_feature_select_strategy": (str, NONE),
    "image_grid_pinpoints": (list[list[int]], NONE), "bos_token": TOKEN, "eos_token": TOKEN, "pad_token": TOKEN,
    "unk_token": TOKEN, "model_max_length": (Range(float, 0), NONE), "extra_special_tokens": (dict, list, NONE),
    "added_tokens_decoder": (dict, NONE), "padding_side": (str, NONE), "chat_template": (str, dict, list, NONE),
}  # fmt: skip


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
    for file in SAID_IN:
        check_fields(said(folder / file), FIELDS, folder / file)
    if not is_present(folder / PREPROCESSOR) and "image_processor" not in said(folder / SAID_IN[0]):
        raise WeightsError(f"{folder} has no {PREPROCESSOR}, which says how pictures are prepared; download it.")
    name = next(filter(None, (said(folder / file).get("processor_class") for file in SAID_IN)), None)
    return read_pretrained("processor", still(name or str(PROCESSOR_MAPPING_NAMES.get(model_type)), folder), folder)


def load_image_processor(folder: Path) -> Any:
    """Return the image processor of the model in `folder`, of the PIL backend where its family has one.

    Raises:
        MissingPackage: the family has none, and torchvision is not installed.
    """
    try:
        return read_pretrained("image processor", AutoImageProcessor, folder, backend="pil")
    except (MissingPackage, WeightsError) as error:
        if is_torchvision_available() or "torchvision" not in str(error.__cause__).lower():
            raise
        raise MissingPackage(
            f"the image processor of {folder} needs the package torchvision; install the one made for your torch, as "
            "with: pip install torchvision."
        ) from error


def still(name: str, folder: Path) -> Any:
    """The processor class `name`, for pictures that neither move nor speak; raises WeightsError if there is none."""
    import transformers

    kind: Any = PixtralProcessor if name == PixtralProcessor.__name__ else getattr(transformers, name, None)
    if not isinstance(kind, type) or not issubclass(kind, ProcessorMixin):
        raise WeightsError(
            f"the model in {folder} asks for the processor {name!r}, which transformers {transformers.__version__} "
            "does not have; install a transformers that has it, or correct processor_class in processor_config.json."
        )

    class Still(kind):
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument is None:
                return type(argument)
            return super().check_argument_for_proper_class(argument_name, argument)

        @classmethod
        def _get_arguments_from_pretrained(cls, folder: Any, processor_dict: Any = None, **others: Any) -> list[Any]:
            parts = {
                "image_processor": bounded(load_image_processor(folder)),
                "tokenizer": read_pretrained("tokenizer", AutoTokenizer, folder),
            }
            return [parts.get(part) for part in cls.get_attributes()]

    return Still
