"""Model family for polydraft: language models without a chat template that were trained on questions and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polydraft import register_family
from polydraft.modalities.text.encoding import TextEncoder
from polydraft.modalities.text.pipeline import TextPipeline
from polydraft.modalities.vlm.template import ChatTemplate

TEMPLATE = """{% for message in messages -%}
{{ "Answer: " if message.role == "assistant" else "Question: " }}{{ message.content }}
{% endfor %}Answer:"""


def is_question_answerer(folder: Path, config: dict[str, Any]) -> bool:
    """Return whether a folder with this config.json holds a model of the family."""
    return bool(config.get("prompt_format") == "question-answer")


class QuestionEncoder(TextEncoder):
    """Encoder of conversations as lines of questions and answers."""

    def build_template(self, text: str | None) -> ChatTemplate:
        """Return the family's template, whatever the folder has."""
        return ChatTemplate(self.tokenizer, TEMPLATE)


@register_family(
    "example-qa",
    modality="vlm",
    fields={"inputs": "text"},  # the modality's models without pictures
    summary="answers questions in the form of its training",
    recognise=is_question_answerer,
    defaults={"temperature": 0.0},
)
class QuestionPipeline(TextPipeline):
    """Language model whose prompts are lines of questions and answers."""

    def build_encoder(self) -> TextEncoder:
        """Return the encoder of prompts."""
        return QuestionEncoder(self.processor, self.card.name, self.context_len)
