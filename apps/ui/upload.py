"""Files that people upload: kept for a while, and judged here and not by Gradio, so that refusals are sentences.

Gradio's own upload route stays shut: it keeps up to a thousand files a request for an hour, and what a broken request
leaves for good.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from gradio.exceptions import InvalidPathError
from numpy.typing import NDArray
from PIL import Image
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect

from polydraft.apps.server.api.pictures import MOST_PIXELS, from_data_url
from polydraft.apps.server.engine.uploads import UploadedSound
from polydraft.apps.server.limits import LARGEST_PICTURE, LARGEST_UPLOAD
from polydraft.apps.ui.gate import is_inside
from polydraft.apps.ui.kept import Bounds, KeptBySession, session_of
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import PromptError
from polydraft.modalities.image_io import WEB_FORMATS, open_image

MOST_FILES = 4  # of one request
MOST_AT_ONCE = 4  # requests
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif"})
SOUNDS = frozenset({
    ".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".aac", ".aiff", ".aif", ".au", ".caf", ".amr", ".wma",
    ".mp4", ".m4v", ".mov", ".mkv", ".mka", ".webm", ".avi", ".flv", ".ts",
})  # fmt: skip
BOUNDS = Bounds(count=16, size=2 * LARGEST_UPLOAD, total_count=512, total_size=10 * LARGEST_UPLOAD, age=3600)


@cache
def upload_folder() -> Path:
    """Return the folder of this process's uploads; nobody else may read it, and it goes when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="polydraft-page-", dir=os.environ.get("GRADIO_TEMP_DIR"))).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["GRADIO_TEMP_DIR"] = str(folder)  # what Gradio calls its upload folder, and a cache
    return folder


class Uploads:
    """Files by path, a few for each session.

    Args:
        folder: where they lie.
        bounds: of their number and size.
        max_sound_bytes: of a sound or a video; other files may be as large as a picture.
    """

    def __init__(self, folder: Path, bounds: Bounds = BOUNDS, max_sound_bytes: int = LARGEST_UPLOAD) -> None:
        self.folder: Path = folder
        self.max_sound_bytes: int = max_sound_bytes
        self.under_way: int = 0
        self.kept: KeptBySession[Path] = KeptBySession(bounds, on_drop=remove)

    async def save(self, file: UploadFile, session: str) -> str:
        """Keep a copy of an uploaded file for `session`; return its path, which nobody can guess."""
        suffix = suffix_of(file)
        name = f"sound{suffix}" if suffix in SOUNDS else f"picture{suffix if suffix in PICTURES else '.bin'}"
        path = self.folder / secrets.token_hex(16) / name
        path.parent.mkdir(parents=True)
        with path.open("wb") as copy:
            await asyncio.to_thread(shutil.copyfileobj, file.file, copy)
        self.kept.put(str(path), session, path, file.size or 0)
        asyncio.get_running_loop().call_later(self.kept.bounds.age + 1, self.kept.drop_old)
        return str(path)

    async def receive(self, request: Request) -> Response:
        """Take the files of a form, all of them or none."""
        async with request.form(max_files=MOST_FILES, max_fields=MOST_FILES) as form:
            files = [part for part in form.getlist("files") if isinstance(part, UploadFile)]
            for file in files:
                is_sound = suffix_of(file) in SOUNDS
                most = self.max_sound_bytes if is_sound else LARGEST_PICTURE
                if (file.size or 0) > most:
                    kind = "sound or video" if is_sound else "picture"
                    return PlainTextResponse(f"A {kind} may have {most // 10**6} MB; choose a smaller one.", 413)
            return JSONResponse([await self.save(file, session_of(request)) for file in files])

    def router(self) -> APIRouter:
        """Return the router of `POST /gradio_api/upload`, and of the progress that Gradio's script polls."""
        router = APIRouter(prefix="/gradio_api", include_in_schema=False)

        @router.post("/upload")
        async def upload(request: Request) -> Response:
            if self.under_way >= MOST_AT_ONCE:
                return PlainTextResponse("Too many files are being uploaded; try again.", 429, {"retry-after": "2"})
            self.under_way += 1
            try:
                return await self.receive(request)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it
            finally:
                self.under_way -= 1

        @router.get("/upload_progress")
        async def progress() -> Response:
            return Response('data: {"msg": "done"}\n\n', media_type="text/event-stream")

        return router


def suffix_of(file: UploadFile) -> str:
    """Return the end of an uploaded file's name, such as ".wav"; "" if it has none."""
    return Path(file.filename or "").suffix.lower()


def remove(path: Path) -> None:
    """Delete an upload and the folder that it has for itself."""
    shutil.rmtree(path.parent, ignore_errors=True)


def upload(value: Image.Image | None, label: str, name: str, **options: Any) -> gr.Image:
    """Build an image box that passes the path of the uploaded file to functions, undecoded."""
    box = gr.Image(
        value, label=label, type="filepath", image_mode=None, format="png", sources=["upload", "clipboard"],
        elem_id=name, buttons=[], alt_text=label,
        placeholder="Drop a picture here, or click to choose one", **options,
    )  # fmt: skip
    box.preprocess = address  # type: ignore[method-assign]  # a class of its own would be a component of its own
    return box


def address(payload: Any) -> str | None:
    """Return the path of an uploaded file, which `uploads_only` has checked."""
    return None if payload is None else payload.path or payload.url


class ChosenSound(NamedTuple):
    """Uploaded sound or video."""

    path: str  # of our copy
    name: str  # of the file as the user has it


def sound_upload(name: str, **options: Any) -> gr.File:
    """Build a box for a sound or video that passes a `ChosenSound` to functions, undecoded."""
    box = gr.File(
        label="Sound", file_types=["audio", "video", *sorted(SOUNDS)], elem_id=name, elem_classes="sound-box",
        height=118, **options,
    )  # fmt: skip
    box.preprocess = chosen_sound  # type: ignore[method-assign,assignment]  # as in `upload`
    return box


def chosen_sound(payload: Any) -> ChosenSound | None:
    """Return an uploaded sound, whose path `uploads_only` has checked."""
    if payload is None or not payload.path:
        return None
    return ChosenSound(payload.path, Path(payload.orig_name or payload.path).name)


def open_recording(
    sound: ChosenSound | None, max_seconds: float, on_block: Callable[[NDArray[np.float32]], None] | None = None
) -> UploadedSound:
    """Open a chosen sound for a request, which closes it.

    Args:
        sound: as its box passes it.
        max_seconds: of sound that are transcribed.
        on_block: called with every block that is read, float32 `[S]` at 16 kHz.

    Raises:
        PromptError: nothing was chosen, or it is no longer kept.
    """
    if sound is None:
        raise PromptError("there is no sound yet; drop a file, record one, or try an example.")
    try:
        descriptor = os.open(sound.path, os.O_RDONLY)
    except OSError as error:
        if system := system_error(error, "the sound cannot be read"):
            raise system from error
        raise PromptError("the sound is no longer there; upload it again.") from error
    # without a name, so that no error shows where it lies
    return UploadedSound(os.fdopen(descriptor, "rb"), max_seconds, on_block)


def uploads_only(page: gr.Blocks) -> None:
    """Refuse files that nobody uploaded.

    Gradio looks at that only where it starts the server itself. In a mounted page whatever a request names would be
    copied into the cache first: any file of this machine, or a download from another one. No event may update a
    property of an upload box, since Gradio then builds another one for the session, without this; columns around such
    boxes are hidden instead.
    """
    page.has_launched = True
    for block in page.blocks.values():
        setattr(block, "async_move_resource_to_block_cache", uploaded)  # noqa: B010 - as a method, of one object


async def uploaded(named: str | Path | None) -> str | None:
    """Return the file if it lies in a folder of uploads or of the page's own results."""
    if named is None:
        return None
    if not is_inside(str(named), upload_folder()):
        raise InvalidPathError("this file was not uploaded; upload it first.")
    return str(Path(named).resolve())


def opened(where: str | None) -> Image.Image | None:
    """Open the image at a path or in a `data:` URL, or raise PromptError."""
    if where is None:
        return None
    if where.startswith("data:"):
        return from_data_url(where)
    if not Path(where).is_file():
        raise PromptError("the picture is no longer there; upload it again.")
    return open_image(where, "the picture", formats=WEB_FORMATS, max_pixels=MOST_PIXELS)
