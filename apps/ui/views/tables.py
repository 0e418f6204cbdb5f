"""Cards of the loaded models, and the table of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from polydraft.apps.ui.views.counts import badge

# on small screens a row shows its name and promise until this is pressed; page.css hides it on others
UNFOLD = (
    '<button type="button" class="unfold" data-unfold aria-expanded="false">Details'
    '<span class="unseen"> of {}</span></button>'
)
DOES = {"image": "Draws", "speech": "Speaks", "transcription": "Listens", "vlm": "Answers"}


def model_cards(models: Sequence[Mapping[str, Any]]) -> str:
    """Return a card per model, from the records of `polydraft models --json`, with `megabytes` where known."""
    return f'<div class="cards">{"".join(model_card(model) for model in models)}</div>'


def model_card(model: Mapping[str, Any]) -> str:
    defaults = dict(model["defaults"])
    method = defaults.pop("method")
    rows = [
        ("Drafts with", f"<code>{escape(method)}</code>"),
        ("Drafters", ", ".join(f"<code>{escape(kind)}</code>" for kind in model["drafters"]) or "none of its own"),
        ("Defaults", ", ".join(f"{escape(name.replace('_', ' '))} {value:g}" for name, value in numbers(defaults))),
    ]
    if model.get("megabytes"):
        rows.append(("Weights", f"{model['megabytes']:.0f} MB"))
    facts = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows if value)
    made = "".join(words(category, found) for category, found in model["makes"].items())
    return (
        f'<article class="card"><header><span class="does">{DOES.get(model["modality"], "Makes")}</span>'
        f"<h3>{escape(model['name'])}</h3><p>{escape(sentence(model['summary']))}</p></header>"
        f"<dl>{facts}</dl>{made}</article>"
    )


def words(category: str, found: Sequence[str]) -> str:
    """Return the vocabulary of a category as a folded list."""
    chips = "".join(f"<li>{escape(word)}</li>" for word in found)
    name = f"{escape(category.capitalize())} <small>{len(found)}</small>"
    return f"<details><summary>{name}</summary><ul>{chips}</ul></details>"


def numbers(values: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in values.items() if isinstance(value, (int, float))]


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def methods_table(methods: Sequence[Mapping[str, Any]], users: Mapping[tuple[str, str], Sequence[str]]) -> str:
    """Return a table with a row per method, from the records of `polydraft methods --json`.

    users: models that can use it, by its kind of token and name.
    """
    rows = "".join(method_row(method, users.get((method["tokens"], method["name"]), ())) for method in methods)
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Method", "Promises", "What it does", "Models", "Paper"))
    return f'<table class="methods"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def method_row(method: Mapping[str, Any], users: Sequence[str]) -> str:
    knobs = "".join(
        f"<li><code>{escape(name)}={escape(str(value['default']))}</code> {escape(value['help'])}</li>"
        for name, value in method["parameters"].items()
    )
    count = f"{len(method['parameters'])} parameter{'s' if len(method['parameters']) != 1 else ''}"
    fold = f"<details><summary>{count}</summary><ul>{knobs}</ul></details>" if knobs else ""
    used = ", ".join(f"<span>{escape(user)}</span>" for user in users) or "none loaded"
    return (
        f'<tr data-promise="{method["guarantee"]}"><th scope="row"><code>{escape(method["name"])}</code>'
        f"{UNFOLD.format(escape(method['name']))}</th>"
        f'<td data-name="Promises">{badge(method["guarantee"])}</td>'
        f'<td data-name="What it does">{escape(sentence(method["summary"]))}{fold}</td>'
        f'<td data-name="Models">{used}</td><td data-name="Paper">{escape(method["paper"]) or "–"}</td></tr>'
    )
