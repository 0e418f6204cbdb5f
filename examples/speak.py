"""Write speech to a file while it is synthesised, as a player would receive it.

python speak.py "We will meet again tomorrow. Bring an umbrella." tomorrow.wav
"""

import sys

import soundfile

from polydraft import load


def main(text: str = "Hello. It rains.", file: str = "hello.wav") -> None:
    pipe = load("tiny-speech")
    stream = pipe.stream(text, voice="rms", seed=3)
    with soundfile.SoundFile(file, "w", pipe.sample_rate, channels=1) as sound:
        for chunk in stream:
            sound.write(chunk.audio)
    stats = stream.result().stats
    print(f"{file}: {stats.tokens} codes in {stats.target_passes} passes of the model")


if __name__ == "__main__":
    main(*sys.argv[1:])
