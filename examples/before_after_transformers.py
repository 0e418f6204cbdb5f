"""A script that uses transformers, and the argument that makes it draft: `custom_generate=speculate("auto")`.

python before_after_transformers.py text HuggingFaceTB/SmolLM2-135M-Instruct "Why is the sky blue?"
python before_after_transformers.py picture LLAVA-OR-QWEN-VL-FOLDER frogs.png
python before_after_transformers.py sound openai/whisper-base talk.wav      # one channel, 16 kHz
"""

import sys
import time

import soundfile
from PIL import Image
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSpeechSeq2Seq, AutoProcessor

from polydraft import speculate

KINDS = {"text": AutoModelForCausalLM, "picture": AutoModelForImageTextToText, "sound": AutoModelForSpeechSeq2Seq}


def read(processor, kind: str, prompt: str) -> dict:
    if kind == "sound":
        return processor(soundfile.read(prompt)[0], sampling_rate=16000, return_tensors="pt") | {"language": "en"}
    parts = [{"type": "image"}, {"type": "text", "text": "Describe the picture."}]
    turn = {"role": "user", "content": prompt if kind == "text" else parts}
    images = {} if kind == "text" else {"images": Image.open(prompt)}
    text = processor.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)
    return processor(text=text, return_tensors="pt", **images)


def main(kind: str, name: str, prompt: str, max_new_tokens: str = "64") -> None:
    model, processor = KINDS[kind].from_pretrained(name, dtype="float32"), AutoProcessor.from_pretrained(name)
    inputs = {**read(processor, kind, prompt), "do_sample": False}
    for way, options in {"before": {}, "after": {"custom_generate": speculate("auto")}}.items():
        model.generate(**inputs, max_new_tokens=2, **options)
        begin = time.perf_counter()
        ids = model.generate(**inputs, max_new_tokens=int(max_new_tokens), **options)
        print(f"{way}, {time.perf_counter() - begin:.2f} s:", *processor.batch_decode(ids, skip_special_tokens=True))


main(*sys.argv[1:])
