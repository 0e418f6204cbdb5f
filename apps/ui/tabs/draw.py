"""*Draw*: a prompt becomes a picture that fills in as its tokens are verified."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from polydraft.apps.ui.again import changed, link, python
from polydraft.apps.ui.frames import Frame
from polydraft.apps.ui.tabs import desk
from polydraft.apps.ui.tabs.desk import Desk
from polydraft.apps.ui.upload import opened, upload
from polydraft.apps.ui.views import chrome, counts, stage
from polydraft.apps.ui.views.picture import data_url, differences, picture
from polydraft.core.errors import PolydraftError

EXAMPLES = (
    "two foxes in the snow", "a panda to the left of a rocket on a yellow background",
    "three small butterflies on grass", "a robot on a wooden table",
)  # fmt: skip
HINT = "A picture is {} tokens. You will see which of them each pass of the network made."
WIDELY = 5.0  # guidance that goes far enough for most models


def tab(at: Desk) -> None:
    """Build the tab: controls on the left, the image on the right."""
    offer = at.offers.get("image")
    if offer is None:
        desk.html(stage.empty("picture", "No image model is loaded; start with --image to draw."))
        return
    rows, columns = offer.grid
    guidance = float(offer.card.defaults.get("guidance_scale", 1.0))
    desk.html(chrome.lead("Draw", "Say what to draw. The picture fills in as its tokens are verified, several a pass."))
    with gr.Row(elem_classes="desk"):
        with gr.Column(scale=5, min_width=320, elem_classes="controls"):
            prompt = gr.Textbox(
                EXAMPLES[0], label="Prompt", info="One to three objects, where they stand, and what is behind them.",
                elem_id="draw-prompt", placeholder=EXAMPLES[1], submit_btn=False, **desk.PROMPT,
            )  # fmt: skip
            start, stop = desk.buttons("draw", "Draw")
            examples = gr.Column(elem_classes="bare")
        with gr.Column(scale=6, min_width=320, elem_classes="stage"):
            view = desk.html(stage.stage(stage.empty("picture", HINT.format(rows * columns))), elem_id="draw-stage")
            runs = desk.runs_box("draw")
        with gr.Column(scale=5, min_width=320, elem_classes="more"):
            seed = desk.seed_box("draw")
            with gr.Accordion("More settings", open=False):
                method = desk.method_box(offer, "draw")
                fine = desk.sampling(offer, "draw")
                fine["guidance_scale"] = gr.Slider(
                    1, max(WIDELY, 2 * guidance), guidance, step=0.1, label="Guidance",
                    elem_id="draw-guidance", info="How strictly the prompt is followed; 1 is off and twice as fast.",
                )  # fmt: skip
                fine["min_p"] = gr.Slider(
                    0, 0.95, offer.card.defaults.get("min_p", 0.0), step=0.05, label="Min p", elem_id="draw-min-p",
                    info="Only tokens this likely beside the likeliest may be drawn; 0 is off.",
                )  # fmt: skip
                if "negative_prompt" in offer.reads:
                    fine["negative_prompt"] = gr.Textbox(
                        "", label="Negative prompt", elem_id="draw-negative", info="What guidance leads away from.",
                        lines=1, max_lines=4,
                    )  # fmt: skip
                prime = upload(None, "Picture to go on from", "draw-prime-picture") if "prime" in offer.reads else None
    record = gr.JSON(visible=False)
    default_values = desk.untouched(fine, seed=0, method=offer.method)

    async def draw(prompt: str, seed: int, method: str, *values: Any) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        settings = {"seed": int(seed or 0), "method": method} | dict(zip(fine, values, strict=False))
        given = changed(settings, default_values)
        try:
            primed = {} if prime is None else {"prime": opened(values[-1])}
            async for frame in at.frames("image", prompt=prompt, **given, **primed):
                yield show_image(frame, prompt, given, offer.grid)
        except PolydraftError as error:
            yield stage.stage(stage.failure(str(error))), {"error": str(error)}

    inputs = [prompt, seed, method, *fine.values(), *([] if prime is None else [prime])]
    after = desk.wired(draw, [start.click, prompt.submit], stop, inputs, [view, record], "draw")
    with examples:
        desk.chips(EXAMPLES, prompt, after)
    at.links["draw"] = {"prompt": prompt, "seed": seed, "method": method, "runs": runs, **fine}


def show_image(frame: Frame, prompt: str, given: dict[str, Any], grid: tuple[int, int]) -> tuple[str, dict[str, Any]]:
    """Return the stage as HTML, and the facts about the run."""
    now = frame.counts
    result = frame.result
    seen = picture(frame.picture, frame.passes, grid, f"Drawing: {prompt}")
    if result is None:
        return stage.stage(seen, counts.bars(now) + counts.facts(now), going=True), {}
    made = data_url(result.image, result.recipe.for_image(0).notes)
    notes_html = stage.notes(differences(prompt, result.captions[0], result.ignored_words))
    below = counts.bars(now) + counts.facts(now) + notes_html + stage.actions(
        link("draw", {"prompt": prompt} | given),
        python("generate_image", [prompt], given, ".image.save('picture.png')"),
        ("Save PNG", made, f"polydraft-{result.seeds[0]}.png"),
    )  # fmt: skip
    announcement = f"The picture is finished. {counts.sentence(now)}"
    return stage.stage(seen, below, announcement), {
        "stats": result.stats.to_dict(),
        "finish_reason": result.finish_reason,
    }
