"""What turns a conversation about a picture into ids and pixels for `tiny-vlm`: words, a template, picture settings.

write(learn_words(seed=0), Path("runs/tiny-vlm/processor"))    # a folder that transformers reads as a LlavaProcessor
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from transformers import CLIPImageProcessorPil, GenerationConfig, PreTrainedTokenizerFast

from polydraft.apps.train.vlm.data import END, ID, IMAGE, PAD, PATCH
from polydraft.modalities.world.scene import CANVAS

# The pictures of a message come before its words, as in LLaVA's own template: people write them in either order.
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ '' if loop.first else ' ' }}{{ part['text'] }}"
    "{% endfor %}"
    "{{ '<|end|>' if message['role'] == 'assistant' else '' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """Everything a processor reads; of a picture that is not square it sees the middle."""
    folder.mkdir(parents=True, exist_ok=True)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, extra_special_tokens={"image_token": IMAGE}
    ).save_pretrained(folder)
    side, half = {"height": CANVAS, "width": CANVAS}, [0.5] * 3
    CLIPImageProcessorPil(
        size={"shortest_edge": CANVAS}, crop_size=side, image_mean=half, image_std=half
    ).save_pretrained(folder)
    said = {
        "processor_class": "LlavaProcessor", "patch_size": PATCH, "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }  # fmt: skip
    (folder / "processor_config.json").write_text(json.dumps(said, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE + "\n")
    GenerationConfig(eos_token_id=ID[END], pad_token_id=ID[PAD], do_sample=False).save_pretrained(folder)
