"""Forms: fields of texts, and files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.datastructures import FormData
from starlette.requests import Request

from .bodies import BodyError


@asynccontextmanager
async def opened_form(
    request: Request, *, max_files: int = 1, max_fields: int = 1000
) -> AsyncIterator[FormData]:
    """The form that a body is; its files are closed afterwards.

    Raises:
        BodyError: its texts are not Unicode: a form may name any of Python's encodings.
    """
    try:
        form = await request.form(max_files=max_files, max_fields=max_fields)
        for name, value in form.multi_items():
            (name + (value if isinstance(value, str) else "")).encode()
    except (ValueError, LookupError) as error:
        raise BodyError(f"expected a form, of texts in UTF-8: {error}") from error
    try:
        yield form
    finally:
        await form.close()
