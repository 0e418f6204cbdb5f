"""Tiny random CLIP, saved in the layout of the published models."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

WORDS = ["a", "red", "cat", "two", "owls", "reading", "late", "at", "night"]
WIDTH, LONGEST, SIDE = 6, 8, 32
START, END = "<|startoftext|>", "<|endoftext|>"


def write(folder: Path, width: int = WIDTH) -> Path:
    """Write a CLIP with `width` features, for images of 32x32 pixels and captions of at most 8 ids."""
    torch.manual_seed(0)
    words = ["[UNK]", *WORDS, START, END]
    ids = {word: place for place, word in enumerate(words)}
    common = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = common | {"vocab_size": len(words), "max_position_embeddings": LONGEST, "eos_token_id": ids[END]}
    text |= {"bos_token_id": ids[START], "pad_token_id": ids[END]}
    vision = common | {"image_size": SIDE, "patch_size": 8}
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=width))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=1.5 / parameter[0].numel() ** 0.5)
    model.save_pretrained(folder)
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([AddedToken(word, special=True) for word in (START, END)])
    made.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(word, ids[word]) for word in (START, END)]
    )
    hf.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", bos_token=START, eos_token=END, pad_token=END
    ).save_pretrained(folder)  # fmt: skip
    size = {"height": SIDE, "width": SIDE}
    hf.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size).save_pretrained(folder)
    return folder
