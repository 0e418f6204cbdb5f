"""Processors of vision-language models, which turn conversations with images into token ids and pixel values.

They are those of transformers without three of their requirements: processors of video and of audio, which are not
used, and torchvision. Images are always processed by the PIL backend, so that answers do not depend on which packages
are installed; only families without that backend need torchvision.
"""

from __future__ import annotations

import math
from copy import copy
from pathlib import Path
from typing import Any

from transformers import AutoImageProcessor, AutoTokenizer
from transformers.models.auto.auto_mappings import PROCESSOR_MAPPING_NAMES
from transformers.processing_utils import ProcessorMixin
from transformers.utils.import_utils import is_torchvision_available

from polydraft.core.errors import MissingPackage, WeightsError
from polydraft.core.folders.fields import NumberRange, check_fields
from polydraft.core.folders.json_files import is_present, read_json
from polydraft.core.folders.readers import read_pretrained
from polydraft.modalities.vlm.image_bounds import with_size_checks

PREPROCESSOR = "preprocessor_config.json"
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")

NONE = type(None)
FLAG, COUNT, SIZE = (bool, NONE), (NumberRange(int, 0), NONE), (NumberRange(int, 1), list[int], dict, NONE)
NUMBERS, TOKEN = (NumberRange(float, -math.inf), list[float], NONE), (str, dict, NONE)
FIELDS: dict[str, Any] = {  # of any of these files, those that processors have in common
    "processor_class": (str, NONE), "image_processor_type": (str, NONE), "tokenizer_class": (str, NONE),
    "do_resize": FLAG, "do_rescale": FLAG, "do_normalize": FLAG, "do_center_crop": FLAG, "do_convert_rgb": FLAG,
    "do_pad": FLAG, "do_image_splitting": FLAG, "size": SIZE, "crop_size": SIZE, "image_mean": NUMBERS,
    "image_std": NUMBERS, "rescale_factor": NUMBERS, "patch_size": SIZE, "merge_size": (NumberRange(int, 1), NONE),
    "temporal_patch_size": (NumberRange(int, 1), NONE), "min_pixels": COUNT, "max_pixels": COUNT,
    "num_additional_image_tokens": COUNT, "image_seq_len": COUNT, "image_seq_length": COUNT,
    "spatial_merge_size": (NumberRange(int, 1), NONE), "vision_feature_select_strategy": (str, NONE),
    "image_grid_pinpoints": (list[list[int]], NONE), "bos_token": TOKEN, "eos_token": TOKEN, "pad_token": TOKEN,
    "unk_token": TOKEN, "model_max_length": (NumberRange(float, 0), NONE), "extra_special_tokens": (dict, list, NONE),
    "added_tokens_decoder": (dict, NONE), "padding_side": (str, NONE), "chat_template": (str, dict, list, NONE),
}  # fmt: skip


class PixtralProcessor(ProcessorMixin):
    """Processor of Pixtral models; the class of transformers cannot be imported without torchvision."""

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, patch_size: int = 16, spatial_merge_size: int = 1,
        chat_template: str | None = None, image_token: str = "[IMG]", image_break_token: str = "[IMG_BREAK]",
        image_end_token: str = "[IMG_END]", **others: Any,
    ) -> None:  # fmt: skip
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.patch_size: int = patch_size * spatial_merge_size
        self.image_token: str = image_token
        self.image_break_token: str = image_break_token
        self.image_end_token: str = image_end_token
        tokens = [image_token, image_break_token, image_end_token]
        self.image_token_ids = tokenizer.convert_tokens_to_ids(tokens)

    def _process_images(self, images: Any, **options: Any) -> Any:
        return super()._process_images(images, **options | {"patch_size": self.patch_size})

    def replace_image_token(self, image_inputs: Any, image_idx: int, **others: Any) -> str:
        """Return the image tokens: rows of patches, separated by break tokens and closed by an end token."""
        height, width = (int(side) // self.patch_size for side in image_inputs["image_sizes"][image_idx])
        lines = [self.image_token * width] * height
        return self.image_break_token.join(lines) + self.image_end_token


def load_processor(folder: Path, model_type: str) -> Any:
    """Load the processor of a model.

    Args:
        folder (Path): the model's folder.
        model_type (str): the `model_type` of its configuration, which names the processor where no file does.

    Raises:
        WeightsError: a file is missing or malformed, or transformers has no such processor.
    """
    for file in PROCESSOR_FILES:
        check_fields(read_json(folder / file), FIELDS, folder / file)
    if not is_present(folder / PREPROCESSOR) and "image_processor" not in read_json(folder / PROCESSOR_FILES[0]):
        raise WeightsError(f"{folder} has no {PREPROCESSOR}, which says how pictures are prepared; download it.")
    name = next(filter(None, (read_json(folder / file).get("processor_class") for file in PROCESSOR_FILES)), None)
    processor_class = image_only_processor(name or str(PROCESSOR_MAPPING_NAMES.get(model_type)), folder)
    return read_pretrained("processor", processor_class, folder)


def load_image_processor(folder: Path) -> Any:
    """Load the image processor of a model, with the PIL backend where its family has one.

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


def image_only_processor(name: str, folder: Path) -> Any:
    """Return the processor class `name` with an image processor and a tokenizer only.

    Raises:
        WeightsError: transformers has no processor of this name.
    """
    import transformers

    processor_class: Any = PixtralProcessor if name == PixtralProcessor.__name__ else getattr(transformers, name, None)
    if not isinstance(processor_class, type) or not issubclass(processor_class, ProcessorMixin):
        raise WeightsError(
            f"the model in {folder} asks for the processor {name!r}, which transformers {transformers.__version__} "
            "does not have; install a transformers that has it, or correct processor_class in processor_config.json."
        )

    class ImageOnlyProcessor(processor_class):
        """Processor whose video and audio processors are None."""

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument is None:
                return type(argument)
            return super().check_argument_for_proper_class(argument_name, argument)

        @classmethod
        def _get_arguments_from_pretrained(cls, folder: Any, processor_dict: Any = None, **others: Any) -> list[Any]:
            parts = {
                "image_processor": with_size_checks(load_image_processor(folder)),
                "tokenizer": read_pretrained("tokenizer", AutoTokenizer, folder),
            }
            return [parts.get(part) for part in cls.get_attributes()]

        def save_pretrained(self, save_directory: Any, **others: Any) -> Any:
            """Write the processors that are there."""
            saved = copy(self)
            saved.__class__ = PresentParts
            return super(ImageOnlyProcessor, saved).save_pretrained(save_directory, **others)

    class PresentParts(ImageOnlyProcessor):
        """Processor that names no part which is None; transformers would save all that are named."""

        @classmethod
        def get_attributes(cls) -> list[str]:
            return [part for part in super().get_attributes() if part in ("image_processor", "tokenizer")]

    ImageOnlyProcessor.__name__ = PresentParts.__name__ = name  # which saving writes down
    return ImageOnlyProcessor
