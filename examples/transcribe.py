"""Write the subtitles of a recording, segment by segment.

    pip install "polydraft[listen]"
python transcribe.py talk.mp3 talk.srt
"""

import sys

from polydraft import load


def main(recording: str = "talk.wav", file: str = "talk.srt", model: str = "whisper-tiny.en") -> None:
    pipe = load(model)
    stream = pipe.stream(recording, temperature=0)
    for step in stream:
        print(step.partial[-60:].ljust(60), end="\r", flush=True)  # what is written, pass by pass
    result = stream.result()
    result.save(file)
    print(f"{file}: {result.text}")
    print(f"{result.stats.tokens} tokens in {result.stats.target_passes} passes of the model")


if __name__ == "__main__":
    main(*sys.argv[1:])
