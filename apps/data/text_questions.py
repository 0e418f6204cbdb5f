"""Questions for language models: common requests about everyday topics, problems, programs and short texts.

They are combined from templates, so that a drafter learns from thousands of different answers.

    random_question(rng)                      # "Explain in simple words what a volcano is. Give an example."
    random_question(rng, held_out=True)       # about a topic or a text that no other question is about
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import TypeVar

import numpy as np

T = TypeVar("T")
EVERYDAY = files("polydraft.assets") / "speech" / "everyday.txt"
HELD_OUT_EVERY = 6  # every sixth topic, problem, program and sentence is held out
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
    "Tell me about the history of {}.", "What are common mistakes people make about {}?", "Write a riddle about {}.",
    "Write an opening sentence for a speech about {}, and explain why it works.", "How has {} changed our lives?",
    "What would the world be like without {}?", "Invent a short joke about {}.", "Summarise what is known about {}.",
    "Which book titles would suit a book about {}? Suggest five.", "Write a short news report about {}.",
)  # fmt: skip
STYLES = (
    "", "", "", "", " Keep it short.", " Answer in at most three sentences.", " Use simple words.", " Give an example.",
    " Answer as a numbered list.", " Be precise.", " Write it for a school magazine.", " Make it cheerful.",
)  # fmt: skip
PAIR_REQUESTS = (
    "What do {} and {} have in common?", "Compare {} with {}.", "Which is more useful to most people, {} or {}? Why?",
    "Write a conversation between {} and {}.", "Write a story in which {} and {} appear.",
    "How would you explain the connection between {} and {}?",
)  # fmt: skip
PROBLEMS = (
    "I cannot fall asleep at night", "my tomato plants have yellow leaves", "I spend too much time on my phone",
    "our kitchen is too small", "I have to cook for ten guests on Sunday", "my best friend has moved away",
    "I have lost my keys again", "I want to learn Spanish before the summer", "my son does not like vegetables",
    "I start a new job on Monday", "my computer has become very slow", "I have a cold and an exam tomorrow",
    "we have a small garden and little time", "I want to save money for a long journey", "my dog barks at visitors",
    "I have to choose between two flats", "I am planning a surprise for my sister", "my colleagues talk all the time",
    "I would like to run my first race", "our club needs more members", "my bread never rises", "I write very slowly",
    "the heating in my room makes a noise", "I want to read more books this year", "my grandmother feels lonely",
    "I have promised to give a talk to children", "we want to use less plastic", "I often forget what I wanted to buy",
    "my bicycle brakes squeak", "I am moving to a town where I know nobody", "I have too many old photographs",
    "my team keeps missing its deadlines", "I want to paint my living room", "I am afraid of flying",
    "our neighbours have invited us for the first time", "I would like to keep a diary",
)  # fmt: skip
PROBLEM_REQUESTS = (
    "What can I do when I have to say this: {}?", "Here is my situation: {}. What should I do first?",
    "I need advice, because {}. Give me five ideas.", "Make a plan for the next week, because {}.",
    "Write a friendly e-mail that begins with the fact that {}.", "Ask me questions that help, since {}.",
    "Tell me what others do when they say: {}.", "List what speaks for and against doing nothing if {}.",
)  # fmt: skip
PROGRAMS = (
    "counts the vowels in a text", "returns the largest of three numbers", "removes duplicates from a list",
    "converts degrees Celsius to Fahrenheit", "checks whether a year is a leap year", "sorts words by their length",
    "reverses the words of a sentence", "computes the factorial of a number", "merges two sorted lists",
    "finds the most common word in a text", "checks whether a number is prime", "draws a triangle of asterisks",
    "adds up the digits of a number", "computes the distance between two points", "parses a date such as 2021-05-17",
    "splits a list into chunks of equal size", "finds all files with a given ending", "rolls two dice many times",
    "converts a number to Roman numerals", "keeps a list of tasks", "validates a password", "transposes a matrix",
    "computes a shopping bill with a discount", "guesses a number between 1 and 100",
)  # fmt: skip
PROGRAM_REQUESTS = (
    "Write a function in {language} that {program}.", "Show me {language} code that {program}.",
    "How do I write a program in {language} that {program}?", "Explain step by step how code in {language} {program}.",
    "Write a {language} function that {program}, and test it.",
)  # fmt: skip
PROGRAM_LANGUAGES = ("Python", "Python", "JavaScript", "Java", "C", "Go", "Rust")
TASKS = (
    "Translate into French: {}", "Translate into German: {}", "Write this in other words: {}",
    "Make a polite letter of this: {}", "Continue this text: {}", "Write this text in capital letters: {}",
    "What is this text about? {}", "Correct the mistakes in this text, if there are any: {}",
)  # fmt: skip


def random_question(rng: np.random.Generator, held_out: bool = False) -> str:
    """Return a question of a random kind.

    Args:
        rng (np.random.Generator): Source of randomness.
        held_out (bool): Whether to ask about held-out topics, problems, programs and sentences, or about the others.
    """
    return pick(rng, QUESTION_KINDS)(rng, held_out)


def topic_question(rng: np.random.Generator, held_out: bool) -> str:
    """Return a request about a topic."""
    return pick(rng, REQUESTS).format(pick(rng, select(TOPICS, held_out))) + pick(rng, STYLES)


def pair_question(rng: np.random.Generator, held_out: bool) -> str:
    """Return a request about two topics."""
    topics = select(TOPICS, held_out)
    return pick(rng, PAIR_REQUESTS).format(*(topics[place] for place in rng.permutation(len(topics))[:2]))


def problem_question(rng: np.random.Generator, held_out: bool) -> str:
    """Return a request for help with a problem of everyday life."""
    return pick(rng, PROBLEM_REQUESTS).format(pick(rng, select(PROBLEMS, held_out))) + pick(rng, STYLES)


def program_question(rng: np.random.Generator, held_out: bool) -> str:
    """Return a request for a small program."""
    program = pick(rng, select(PROGRAMS, held_out))
    return pick(rng, PROGRAM_REQUESTS).format(program=program, language=pick(rng, PROGRAM_LANGUAGES))


def text_question(rng: np.random.Generator, held_out: bool) -> str:
    """Return a task with a text of up to MAX_SENTENCES sentences."""
    sentences, count = select(everyday_sentences(), held_out), rng.integers(1, MAX_SENTENCES + 1)
    return pick(rng, TASKS).format(" ".join(pick(rng, sentences) for _ in range(count)))


# topics twice, as they are most of what is asked
QUESTION_KINDS: tuple[Callable[[np.random.Generator, bool], str], ...] = (
    topic_question, topic_question, pair_question, problem_question, program_question, text_question,
)  # fmt: skip


def pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    """Return a random one of `choices`."""
    return choices[int(rng.integers(len(choices)))]


def select(choices: tuple[str, ...], held_out: bool) -> list[str]:
    """Return the held-out choices, or the others."""
    return [choice for place, choice in enumerate(choices) if (place % HELD_OUT_EVERY == 0) == held_out]


@cache
def everyday_sentences() -> tuple[str, ...]:
    """Return the everyday sentences of the package."""
    return tuple(line.strip() for line in EVERYDAY.read_text(encoding="utf-8").splitlines() if line.strip())
