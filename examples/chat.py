"""Ask several questions about an image at once: it is encoded once, and every answer is what it would be alone.

python chat.py frogs.png
python chat.py photo.jpg HuggingFaceTB/SmolVLM-256M-Instruct
"""

import sys

from polydraft import load

QUESTIONS = ["How many frogs are there?", "What colour is the background?"]


def main(image: str = "frogs.png", model: str = "tiny-vlm") -> None:
    pipe = load(model)
    answers = pipe(image, QUESTIONS, max_new_tokens=40)
    for question, answer in zip(QUESTIONS, answers.texts, strict=True):
        print(question, answer)
    for step in pipe.stream(image, "Describe the picture.", max_new_tokens=40):
        print(step.text, end="", flush=True)  # the words that one pass has committed
    print("\nsame as alone:", pipe(image, QUESTIONS[1], max_new_tokens=40, seed=1).text == answers.texts[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
