"""*Ask*: questions about a picture; answers stream, the words of one pass underlined together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from html import escape
from typing import Any

import gradio as gr

from polydraft.apps.ui.again import changed, link, python
from polydraft.apps.ui.frames import Frame
from polydraft.apps.ui.scenes import SCENES, scene
from polydraft.apps.ui.tabs import desk
from polydraft.apps.ui.tabs.desk import AT_ONCE, Desk
from polydraft.apps.ui.upload import opened, upload
from polydraft.apps.ui.views import chrome, counts, stage
from polydraft.apps.ui.views.answer import answer
from polydraft.core.errors import PolydraftError

QUESTIONS = ("Describe the picture.", "What colour is the background?", "How many objects are there in the picture?")
TEXT_QUESTIONS = ("Why is the sky blue?", "Write a short poem about the sea.", "What is a prime number?")
LEADS = {  # by whether the model sees
    True: "Give a picture and ask about it. Words that one pass said share an underline.",
    False: "Ask about anything; this model sees no pictures. Words that one pass said share an underline.",
}
HINT = "The answer appears here, a few words a pass."
Turn = tuple[str, list[str]]  # a question, and what each pass added to its answer


def tab(at: Desk) -> None:
    """Picture and question on the left, the conversation on the right."""
    offer = at.offers.get("vlm")
    if offer is None:
        desk.html(stage.empty("answer", "No vision-language model is loaded; start with --vlm to ask."))
        return
    sees = offer.sees
    questions = QUESTIONS if sees else TEXT_QUESTIONS
    desk.html(chrome.lead("Ask", LEADS[sees]))
    with gr.Row(elem_classes="desk"):
        with gr.Column(scale=5, min_width=320, elem_classes="controls"):
            image = upload(scene(next(iter(SCENES))) if sees else None, "Picture", "ask-picture", visible=sees)
            with gr.Row(elem_classes="scenes", visible=sees):
                thumbs = {
                    name: gr.Button(name, size="sm", elem_classes=["scene", f"scene-{index}"], min_width=40)
                    for index, name in enumerate(SCENES)
                }
            question = gr.Textbox(
                questions[0], label="Question", info="Further questions go on with the conversation.",
                elem_id="ask-question", **desk.PROMPT,
            )  # fmt: skip
            start, stop = desk.buttons("ask", "Ask")
            examples = gr.Column(elem_classes="bare")
        with gr.Column(scale=6, min_width=320, elem_classes="stage"):
            view = desk.html(stage.stage(stage.empty("answer", HINT)), elem_id="ask-stage")
            with gr.Row(elem_classes="under"):
                runs = desk.runs_box("ask", True)
                again = gr.Button("New conversation", size="sm", elem_id="ask-new", min_width=140, elem_classes="quiet")
        with gr.Column(scale=5, min_width=320, elem_classes="more"):
            seed = desk.seed_box("ask")
            with gr.Accordion("More settings", open=False):
                method = desk.method_box(offer, "ask")
                fine = desk.sampling(offer, "ask")
                fine["max_new_tokens"] = gr.Slider(
                    8, 256, 96, step=8, label="Longest answer", elem_id="ask-longest", info="In tokens."
                )
    record, turns = gr.JSON(visible=False), gr.State([])
    default_values = desk.untouched(fine, seed=0, method=offer.method)

    async def ask(
        image: str | None, question: str, turns: list[Turn], seed: int, method: str, *values: float
    ) -> AsyncIterator[tuple[str, dict[str, Any], list[Turn]]]:
        settings = {"seed": int(seed or 0), "method": method} | dict(zip(fine, values, strict=True))
        given = changed(settings, default_values)
        try:
            asked = {"image": opened(image) if sees else None, "messages": messages(turns), "question": question}
            async for frame in at.frames("vlm", **asked, **given | {"max_new_tokens": settings["max_new_tokens"]}):
                shown, known = talk(frame, question, turns, given, "picture.png" if sees else None)
                yield shown, known, turns if frame.result is None else [*turns, (question, list(frame.pieces))]
        except PolydraftError as error:
            yield stage.stage(transcript(turns) + stage.failure(str(error))), {"error": str(error)}, turns

    inputs = [image, question, turns, seed, method, *fine.values()]
    after = desk.wired(ask, [start.click, question.submit], stop, inputs, [view, record, turns], "ask")
    with examples:
        desk.chips(questions, question, after)

    def fresh() -> tuple[str, list[Turn]]:
        return stage.stage(stage.empty("answer", HINT)), []

    for event in (again.click, image.change):
        event(fresh, None, [view, turns], **AT_ONCE)
    for name, thumb in thumbs.items():
        thumb.click(lambda name=name: scene(name), None, image, **AT_ONCE)
    at.links["ask"] = {"question": question, "seed": seed, "method": method, "runs": runs, **fine}


def messages(turns: list[Turn]) -> list[dict[str, Any]]:
    """Earlier turns as the pipeline takes them; it puts the picture before the first question."""
    previous_turns: list[dict[str, Any]] = []
    for question, pieces in turns:
        previous_turns.append({"role": "user", "content": [{"type": "text", "text": question}]})
        previous_turns.append({"role": "assistant", "content": "".join(pieces).strip()})
    return previous_turns


def transcript(turns: list[Turn], now: str = "") -> str:
    """Return the conversation so far as HTML."""
    turns_html = "".join(asked_question(question) + answer(pieces) for question, pieces in turns)
    return f'<div class="talk">{turns_html}{now}</div>' if turns_html or now else ""


def asked_question(question: str) -> str:
    return f'<p class="asked"><span class="unseen">You asked: </span>{escape(question)}</p>'


def talk(
    frame: Frame, question: str, turns: list[Turn], given: dict[str, Any], picture: str | None
) -> tuple[str, dict[str, Any]]:
    """Return the stage as HTML, and the facts about the run; `picture` is what its line of Python calls the picture."""
    now, result = frame.counts, frame.result
    shown = transcript(turns, asked_question(question) + answer(frame.pieces, going=result is None))
    if result is None:
        return stage.stage(shown, counts.bars(now) + counts.facts(now), going=True), {}
    cut = "The answer was cut at its longest length." if result.finish_reason == "length" else ""
    previous_turns = [f"{text}." for text in result.notes]
    longest = {"max_new_tokens": now.tokens} if cut else {}
    below = counts.bars(now) + counts.facts(now) + stage.notes([cut, *previous_turns]) + stage.actions(
        link("ask", {"question": question} | given),
        python("chat", [picture, question], given | longest, ".text").replace("; chat(", "; print(chat(") + ")",
    )  # fmt: skip
    known = {"text": result.text, "stats": result.stats.to_dict(), "finish_reason": result.finish_reason}
    return stage.stage(shown, below, f"Answer: {result.text}"), known
