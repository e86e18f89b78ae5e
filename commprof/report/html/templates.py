"""HTML from the templates beside this file.

Whatever text they are given is escaped, and control characters in it are shown as escapes: only
what is ``Markup`` stands as it is.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from commprof.report.plain_text import printable
from commprof.report.tabulated import one_line


def rendered(template: str, **values: Any) -> str:
    """The template, a file's name, with these values."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("commprof.report", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )
    made.filters |= {"digest": digest, "one_line": one_line}
    return made


def _shown(value: object) -> object:
    return value if isinstance(value, Markup) else printable(str(value))


def digest(text: str) -> str:
    """A style or script as a content security policy names it."""
    hashed = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(hashed).decode()}"
