"""Conversations of vision-language data in the common schemas.

    for messages in questions(row): ...        # a conversation up to a question, once for every question in it

Read are OpenAI's `messages`, LLaVA's and ShareGPT's `conversations` (`{"from": "human", "value": "<image>…"}`), `texts`
of user and assistant, `question` or `questions`, and images alone, which get built-in questions. Images are in the
messages or under `image` or `images`: a path relative to the file's folder, a data: URL, or bytes. Answers in the data
serve as history only: a drafter is trained on the answers of its target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from polydraft.apps.data.records import DataRecord, Later
from polydraft.core.errors import PromptError
from polydraft.modalities.image_io import decode_data_url, read_header_size

Message: TypeAlias = dict[str, Any]
Source: TypeAlias = Path | bytes | Later
GENERAL = (  # asked about pictures that come without questions
    "Describe the picture.", "What is in the picture?", "What stands out most, and why?", "Which colours are there?",
    "What is in the background?", "Where could this be, and what tells you?", "Write a caption for this picture.",
    "What text can be read in it, if any?", "What might have happened just before?", "List everything you can see.",
)  # fmt: skip
ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "model": "assistant", "bot": "assistant", "system": "system", "developer": "system",
}  # fmt: skip
MARK = "<image>"  # where a picture stands, in LLaVA's form
ALONE = ("image", "images", "file_name")  # fields that hold a row's pictures
WORDS, SEEN = ("text", "input_text", "output_text"), ("image", "image_url", "input_image")  # kinds of parts


def questions(row: DataRecord) -> list[list[Message]]:
    """Return the conversation of `row` up to each of the user's turns; images are a verified `Path` or bytes."""
    pictures = [source(row, value) for value in image_fields(row)]
    messages = turns(row, bool(pictures))
    if messages is None:
        if not pictures:
            raise row.wrong("asks nothing", "it needs messages, conversations, texts, a question, or at least an image")
        seen = [{"type": "image", "image": picture} for picture in pictures]
        return [[{"role": "user", "content": [*seen, {"type": "text", "text": text}]}] for text in GENERAL]
    place(row, messages, pictures)
    ends = [index for index, turn in enumerate(messages) if turn["role"] == "user"]
    if not ends:
        raise row.wrong("has no question", "a conversation needs a turn of the user's")
    return [messages[: end + 1] for end in ends]


def image_fields(row: DataRecord) -> list[Any]:
    """Return the images in fields of their own, as the row has them."""
    return to_list(next((row.value[name] for name in ALONE if row.value.get(name)), []))


def place(row: DataRecord, messages: list[Message], pictures: list[Source]) -> None:
    """Fill separate images into open placeholders, or put them before the first question."""
    parts = [part for turn in messages for part in turn["content"] if part["type"] == "image"]
    places = [part for part in parts if "image" not in part]
    if pictures and not parts:
        first = next((turn for turn in messages if turn["role"] == "user"), messages[0])
        first["content"][:0] = [{"type": "image", "image": picture} for picture in pictures]
    elif len(places) != len(pictures):
        raise row.wrong(
            f"has {len(places)} places for pictures and {len(pictures)} pictures apart from them", "give one a place"
        )
    for part, picture in zip(places, pictures, strict=False):
        part["image"] = picture


def turns(row: DataRecord, marked: bool) -> list[Message] | None:
    """Return the turns of a row in one schema, or None where it has none.

    Args:
        marked: Whether `<image>` stands for an image.
    """
    value = row.value
    if value.get("messages"):
        found = [(field(row, turn, "role"), turn.get("content")) for turn in objects(row, "messages")]
    elif value.get("conversations"):
        found = [
            (turn.get("from", turn.get("role")), turn.get("value", turn.get("content")))
            for turn in objects(row, "conversations")
        ]
    elif value.get("texts"):
        found = [(role, turn[role]) for turn in objects(row, "texts") for role in ("user", "assistant") if role in turn]
    elif value.get("questions") or value.get("question") or value.get("prompt"):
        asked = value.get("questions") or value.get("question") or value.get("prompt")
        found = [("user", text) for text in to_list(asked)]
    else:
        return None
    return [{"role": role_of(row, role), "content": parts(row, content, marked)} for role, content in found]


def role_of(row: DataRecord, role: Any) -> str:
    if not isinstance(role, str) or role.lower() not in ROLES:
        raise row.wrong(f"has a turn of {role!r:.40}", f"write one of {', '.join(ROLES)}")
    return ROLES[role.lower()]


def parts(row: DataRecord, content: Any, marked: bool) -> list[dict[str, Any]]:
    """Return the content of a turn as a list of parts."""
    if isinstance(content, str):
        return split(content) if marked or content.startswith(MARK) else [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise row.wrong("has a turn without content", "it must be text, or a list of text and image parts")
    made: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in WORDS and isinstance(part.get("text"), str):
            made.append({"type": "text", "text": part["text"]})
        elif kind in SEEN:
            given = next((part[name] for name in (*SEEN, "path", "url") if part.get(name) is not None), None)
            given = given.get("url") if isinstance(given, dict) and "url" in given else given
            made.append({"type": "image"} | ({} if given is None else {"image": source(row, given)}))
        else:
            raise row.wrong(f"has the part {part!r:.60}", 'a part is {"type": "text", "text": …} or of type image_url')
    return made


def split(text: str) -> list[dict[str, Any]]:
    """Split text at `<image>`."""
    made: list[dict[str, Any]] = []
    for index, piece in enumerate(text.split(MARK)):
        made += [{"type": "image"}] if index else []
        made += [{"type": "text", "text": piece.strip("\n")}] if piece.strip() else []
    return made


def source(row: DataRecord, given: Any) -> Source:
    """Locate an image and check its format by its first bytes."""
    found = located(row, given)
    name = f"the picture {found}" if isinstance(found, Path) else "its picture"
    if isinstance(found, Path) and not found.is_file():
        raise row.wrong(f"names {name}, which is not there", "paths start from the folder of the file they stand in")
    try:
        read_header_size(found, name)
    except PromptError as error:
        what, _, do = str(error).removeprefix(f"{name} ").rstrip(".").rpartition("; ")
        raise row.wrong(what if str(found) == row.place else f"has {name}, which {what}", do) from error
    return given if isinstance(given, Later) else found


def located(row: DataRecord, given: Any) -> Path | bytes:
    """Return the path or the bytes of an image."""
    if isinstance(given, Later):
        given = given.read()
    if isinstance(given, dict):  # as sets of the hub store it
        given = given.get("bytes") or given.get("path")
    if isinstance(given, str) and given.lstrip()[:5].lower() == "data:":
        try:
            given = decode_data_url(given)
        except PromptError as error:
            what, _, do = str(error).rstrip(".").rpartition("; ")
            raise row.wrong(f"has a data: URL that cannot be used ({what})", do) from error
    elif isinstance(given, str) and "://" in given:
        raise row.wrong(f"has its picture at {given:.80}", "nothing is fetched here, give a file's path")
    elif isinstance(given, str):
        given = row.folder / given
    if not isinstance(given, (Path, bytes)):
        raise row.wrong(f"has the picture {given!r:.40}", "give a path, a data: URL, or bytes")
    return given


def to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def objects(row: DataRecord, name: str) -> list[dict[str, Any]]:
    """Return the list of objects under `name`."""
    value = row.value[name]
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        raise row.wrong(f"has {name} that are no list of turns", f'write "{name}": [{{…}}, {{…}}]')
    return value


def field(row: DataRecord, turn: dict[str, Any], name: str) -> Any:
    if name not in turn:
        raise row.wrong(f"has a turn without {name}", f'write every turn as {{"{name}": …, …}}')
    return turn[name]
