"""Multipart forms with one file, which goes to a temporary file while it is received."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from polydraft.apps.server.api.guards import OTHER_FIELDS, TooLarge
from polydraft.apps.server.api.schemas.common import FormModel
from polydraft.apps.server.errors import Cancelled, TooBusy, TooLong
from polydraft.core.errors import InvalidArgument

Form = TypeVar("Form", bound=FormModel)
FILE = "file"  # the field of the file
MOST_FIELDS = 64


@dataclass
class UploadSlots:
    """Count of the uploads that are being received, so that their files on disk are bounded."""

    used: int = field(default=0)

    @contextmanager
    def slot(self, most: int) -> Iterator[None]:
        """Hold one of `most` slots; raise TooBusy if all are taken."""
        if self.used >= most:
            raise TooBusy(f"{self.used} files are being received, the most at a time; try again in a moment.")
        self.used += 1
        try:
            yield
        finally:
            self.used -= 1


async def receive_form(request: Request, kind: type[Form], most_bytes: int) -> tuple[Form, UploadFile]:
    """Receive a form and return its fields and its file, which the caller closes.

    Args:
        request (Request): whose body nobody has read.
        kind (type[Form]): model of the fields beside the file.
        most_bytes (int): largest file.

    Raises:
        RequestValidationError: a field is unknown or has a value that is not allowed.
        InvalidArgument: the body is no form, or the file is missing or empty.
        TooLong: the file is larger than `most_bytes`.
        Cancelled: the client left.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
        raise InvalidArgument(f"the body is no form; send multipart/form-data with a part {FILE}.")
    try:
        form = await request.form(max_files=1, max_fields=MOST_FIELDS, max_part_size=OTHER_FIELDS)
    except HTTPException as error:
        reason = str(error.detail).rstrip(".")
        raise InvalidArgument(f"the form cannot be read ({reason:.200}); send one file and its fields.") from error
    except ClientDisconnect as error:
        raise Cancelled("the client left.") from error
    except TooLarge as error:  # answered by the guards
        raise TooLong(f"the file has more than {most_bytes} bytes; send a smaller one.") from error
    try:
        return to_fields(form, kind), checked_file(form, most_bytes)
    except BaseException:
        await form.close()
        raise


def checked_file(form: FormData, most_bytes: int) -> UploadFile:
    """Return the file of a form; raise InvalidArgument if there is none, or nothing in it, and TooLong for too much."""
    upload = form.get(FILE)
    if not isinstance(upload, UploadFile):
        raise InvalidArgument(f"{FILE}: there is no file; send one as a part {FILE} with a file name.")
    if not upload.size:
        raise InvalidArgument(f"{FILE}: it is empty; send one with sound in it.")
    if upload.size > most_bytes:
        raise TooLong(f"the file has more than {most_bytes} bytes; send a smaller one.")
    return upload


def to_fields(form: FormData, kind: type[Form]) -> Form:
    """Return the validated fields of a form beside its file; names of lists may end in [] and are given repeatedly."""
    values: dict[str, Any] = {}
    for name, value in form.multi_items():
        name = name.removesuffix("[]")
        if name == FILE:
            continue
        if isinstance(value, UploadFile):
            raise InvalidArgument(f"{name:.80}: a file is not possible here; send it as {FILE}.")
        if name in kind.lists():
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidArgument(f"{name:.80}: it is given twice; leave one out.")
        else:
            values[name] = value
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        places = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]
        raise RequestValidationError(places, body=values) from error


def form_body(kind: type[FormModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a request whose body is such a form."""
    schema = kind.model_json_schema()
    lists = kind.lists()
    fields = {f"{name}[]" if name in lists else name: field for name, field in schema["properties"].items()}
    properties = {FILE: {"type": "string", "format": "binary", "description": kind.file_description}} | fields
    form = schema | {"properties": properties, "required": [FILE, *schema.get("required", ())]}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}
