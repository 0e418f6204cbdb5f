"""Options that belong to a model: `--drafter FOLDER` of the only one, `--drafter MODEL=FOLDER` of one of several.

assign_drafters(["runs/hydra"], ["tiny-vlm"])                              # {"tiny-vlm": ["runs/hydra"]}
assign_drafters(["tiny-vlm=runs/hydra"], ["tiny-image", "tiny-vlm"])       # {"tiny-vlm": ["runs/hydra"]}
assign_references(["tiny-vlm=terms.txt"], ["tiny-image", "tiny-vlm"])      # {"tiny-vlm": "terms.txt"}
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
    return assign_to_models("drafter", "FOLDER", given, models)


def assign_references(given: Sequence[str], models: Sequence[str]) -> dict[str, str]:
    """Return the reference text of every model that has one.

    Args:
        given (Sequence[str]): files, `MODEL=` before one where there are several models.
        models (Sequence[str]): names or folders of the models, as the user wrote them.

    Raises:
        InvalidArgument: a reference names none of several models, there is no model, or a model has two references.
    """
    files = assign_to_models("reference", "FILE", given, models)
    for model, several in files.items():
        if len(several) > 1:
            raise InvalidArgument(f"model {model} has {len(several)} references ({', '.join(several)}); give one.")
    return {model: file for model, (file,) in files.items()}


def assign_to_models(option: str, value: str, given: Sequence[str], models: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of an option by the model that they are for.

    Args:
        option (str): name of the option, for the error message.
        value (str): what it takes, for the error message, such as "FOLDER".
        given (Sequence[str]): values, `MODEL=` before one where there are several models.
        models (Sequence[str]): names or folders of the models, as the user wrote them.

    Raises:
        InvalidArgument: a value names none of several models, or there is no model.
    """
    distinct, found = list(dict.fromkeys(models)), dict[str, list[str]]()
    for text in given:
        named = [model for model in distinct if text.startswith(f"{model}=")]
        if not named and len(distinct) != 1:
            raise InvalidArgument(
                f"{option} {text!r:.200} names none of the models {', '.join(distinct)}; give it as MODEL={value}."
            )
        model = max(named, key=len, default=distinct[0])  # a model's folder may itself contain an equals sign
        found.setdefault(model, []).append(text.removeprefix(f"{model}="))
    return found
