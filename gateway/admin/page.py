"""The live page: files as they lie in `console/`, served from memory, open to everybody.

They hold no data; that comes by fetch, with the operator's token. Nothing is loaded from elsewhere, and no
string becomes markup: the browser itself holds the page to that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from starlette.responses import Response

FOLDER = Path(__file__).with_name("console")
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-cache",  # another version of the gateway has another page
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def pages() -> Mapping[str, Response]:
    """Each file by its path; the page itself is `/console`."""
    answers = {}
    for file in sorted(FOLDER.iterdir()):
        if kind := KINDS.get(file.suffix):
            path = "/console" if file.name == "index.html" else f"/console/{file.name}"
            answers[path] = Response(file.read_bytes(), headers=HEADERS, media_type=kind)
    return answers
