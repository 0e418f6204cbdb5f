"""Drafters of several models on one command line: `--drafter FOLDER` for the one model, `--drafter MODEL=FOLDER` else.

assign_drafters(["runs/hydra"], ["tiny-vlm"])                              # {"tiny-vlm": ["runs/hydra"]}
assign_drafters(["tiny-vlm=runs/hydra"], ["tiny-image", "tiny-vlm"])       # {"tiny-vlm": ["runs/hydra"]}
"""

from __future__ import annotations

from collections.abc import Sequence

from polydraft.core.errors import InvalidArgument


def assign_drafters(given: Sequence[str], models: Sequence[str]) -> dict[str, list[str]]:
    """Return the drafters of every model that has any.

    Args:
        given (Sequence[str]): folders or repositories, `MODEL=` before one where there are several models.
        models (Sequence[str]): names or folders of the models, as the user wrote them.

    Raises:
        InvalidArgument: a drafter names none of several models, or there is no model.
    """
    distinct, found = list(dict.fromkeys(models)), dict[str, list[str]]()
    for text in given:
        named = [model for model in distinct if text.startswith(f"{model}=")]
        if not named and len(distinct) != 1:
            raise InvalidArgument(
                f"drafter {text!r:.200} names none of the models {', '.join(distinct)}; give it as MODEL=FOLDER."
            )
        model = max(named, key=len, default=distinct[0])  # a model's folder may itself contain an equals sign
        found.setdefault(model, []).append(text.removeprefix(f"{model}="))
    return found
