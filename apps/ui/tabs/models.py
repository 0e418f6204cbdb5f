"""*Models*: what is loaded and what can be asked of it, and every way to draft."""

from __future__ import annotations

import gradio as gr

from polydraft.apps.terminal.listings import describe_model, list_methods
from polydraft.apps.ui.tabs import desk
from polydraft.apps.ui.tabs.desk import AT_ONCE, Desk
from polydraft.apps.ui.views import chrome
from polydraft.apps.ui.views.tables import methods_table, model_cards
from polydraft.modalities.model_card import ModelCard

PROMISES = ("all", "identical", "exact", "lossy")


def tab(at: Desk) -> None:
    """Build the tab: model cards, then the table of methods with a filter."""
    first = [offer for modality, offer in at.offers.items() if modality != "transcription"]
    cards = [offer.card for offer in (*first, *at.transcribers.values())]
    desk.html(chrome.lead("Models", "What is loaded, what it can make, and every way it can draft."))
    desk.html(model_cards([describe_model(card) | {"megabytes": megabytes(card)} for card in cards]))
    desk.html('<h2 class="subhead">Methods</h2>')
    promise = gr.Radio(
        list(PROMISES), value="all", label="Show methods whose tokens are", elem_classes="choice",
        elem_id="models-promise",
        info="identical: the same tokens as plain decoding. exact: the same distribution. lossy: near it.",
    )  # fmt: skip
    kinds = {card.registry.tokens for card in cards}
    found = [method for method in list_methods() if method["tokens"] in kinds]
    users = {
        (tokens, name): [card.name for card in cards if card.registry.tokens == tokens and name in card.methods]
        for tokens, name in ((method["tokens"], method["name"]) for method in found)
    }
    table = desk.html(methods_table(found, users))

    def filtered(promise: str) -> str:
        return methods_table([method for method in found if promise in ("all", method["guarantee"])], users)

    promise.change(filtered, promise, table, **AT_ONCE)


def megabytes(card: ModelCard) -> float:
    """Return the size of a model's weights in MB, drafters included."""
    return sum(file.stat().st_size for file in card.path.rglob("*.safetensors")) / 1e6
