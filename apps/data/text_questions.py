"""Questions for language models: common requests about everyday topics and short texts.

    random_question(rng)                      # "Explain in simple words what a volcano is."
    random_question(rng, held_out=True)       # about a topic or a text that no other question is about
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np

EVERYDAY = files("polydraft.assets") / "speech" / "everyday.txt"
HELD_OUT_EVERY = 6  # every sixth topic and sentence is held out
MAX_SENTENCES = 3  # of a text
TOPICS = (
    "a volcano", "the moon", "photosynthesis", "a rainbow", "the heart", "gravity", "a vaccine", "an earthquake",
    "a coral reef", "the Roman Empire", "a steam engine", "the printing press", "a black hole", "a democracy",
    "inflation", "a violin", "jazz", "chess", "a marathon", "bread", "chocolate", "coffee", "a honey bee", "a whale",
    "an oak tree", "a desert", "a glacier", "the rain forest", "a lighthouse", "a bicycle", "an aeroplane", "a bridge",
    "a computer", "the internet", "a password", "an algorithm", "a prime number", "a triangle", "probability",
    "a budget", "a loan", "a job interview", "a good night's sleep", "a healthy breakfast", "a vegetable garden",
    "a birthday party", "a camping trip", "a first aid kit", "recycling", "solar energy", "a dream", "friendship",
    "courage", "a library", "a museum", "a market", "a haiku", "a fairy tale", "a thunderstorm", "the sea",
)  # fmt: skip
REQUESTS = (
    "What is {}?", "Explain in simple words what {} is.", "Explain {} to a child.", "Give me three facts about {}.",
    "Write a short poem about {}.", "Write a short story about {}.", "Why is {} important?",
    "List five words that have to do with {}.", "Write a paragraph about {}.", "Describe {} in two sentences.",
    "What should I know about {}?", "Ask me three questions about {}, and answer them.",
)  # fmt: skip
TASKS = (
    "Translate into French: {}", "Translate into German: {}", "Write this in other words: {}",
    "Make a polite letter of this: {}", "Continue this text: {}", "Write this text in capital letters: {}",
    "What is this text about? {}", "Correct the mistakes in this text, if there are any: {}",
)  # fmt: skip


def random_question(rng: np.random.Generator, held_out: bool = False) -> str:
    """Return a question: a request about a topic, or one time in three a task with a text.

    Args:
        rng (np.random.Generator): Source of randomness.
        held_out (bool): Whether to ask about held-out topics and sentences, or about the others.
    """
    if rng.random() < 1 / 3:
        sentences, count = select(everyday_sentences(), held_out), rng.integers(1, MAX_SENTENCES + 1)
        text = " ".join(sentences[place] for place in rng.integers(len(sentences), size=count))
        return TASKS[rng.integers(len(TASKS))].format(text)
    topics = select(TOPICS, held_out)
    return REQUESTS[rng.integers(len(REQUESTS))].format(topics[rng.integers(len(topics))])


def select(choices: tuple[str, ...], held_out: bool) -> list[str]:
    """Return the held-out choices, or the others."""
    return [choice for place, choice in enumerate(choices) if (place % HELD_OUT_EVERY == 0) == held_out]


@cache
def everyday_sentences() -> tuple[str, ...]:
    """Return the everyday sentences of the package."""
    return tuple(line.strip() for line in EVERYDAY.read_text(encoding="utf-8").splitlines() if line.strip())
