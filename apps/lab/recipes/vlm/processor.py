"""Processor of `tiny-vlm`: tokenizer, chat template and image settings.

write(learn_words(seed=0), Path("runs/tiny-vlm/processor"))    # a folder that transformers reads as a LlavaProcessor
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from transformers import CLIPImageProcessorPil, GenerationConfig, PreTrainedTokenizerFast

from polydraft.apps.lab.recipes.vlm.data import END, ID, IMAGE, PAD, PATCH
from polydraft.modalities.world.scene import CANVAS

# The images of a message come before its text, as in LLaVA's template: users write them in either order.
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ '' if loop.first else ' ' }}{{ part['text'] }}"
    "{% endfor %}"
    "{{ '<|end|>' if message['role'] == 'assistant' else '' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_processor(tokenizer: Tokenizer, folder: Path) -> None:
    """Write all files of a processor; an image that is not square is cropped to its middle."""
    folder.mkdir(parents=True, exist_ok=True)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, extra_special_tokens={"image_token": IMAGE}
    ).save_pretrained(folder)
    side, half = {"height": CANVAS, "width": CANVAS}, [0.5] * 3
    CLIPImageProcessorPil(
        size={"shortest_edge": CANVAS}, crop_size=side, image_mean=half, image_std=half
    ).save_pretrained(folder)
    processor_config = {
        "processor_class": "LlavaProcessor", "patch_size": PATCH, "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }  # fmt: skip
    (folder / "processor_config.json").write_text(json.dumps(processor_config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE + "\n")
    GenerationConfig(eos_token_id=ID[END], pad_token_id=ID[PAD], do_sample=False).save_pretrained(folder)
