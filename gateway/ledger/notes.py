"""What gateways tell each other of the prompts that they sent, and of engines that fail: of a prompt hashes
and lengths, nothing else.

A note is a head of fixed size, the engine's URL, then links of 12 bytes. Digests are those of the prompt's
chain: they depend on its bytes alone, so they are the same in every process.
"""

from __future__ import annotations

import enum
import struct
from itertools import pairwise
from typing import NamedTuple

from policies.prefix import Chain, Link

VERSION = 1
LINKS_MAX = 1024  # of a prompt, from its start: 12 KB
# Version, kind, owner, bytes of the URL, tokens, cached tokens, links, places inside.
HEAD = struct.Struct("<BB8sHIIHH")
LINK = struct.Struct("<QI")
OWNER_BYTES = 8
TOKENS_MAX = 2**32 - 1  # an engine may say anything


class Kind(enum.IntEnum):
    """What happened."""

    SENT = 1  # a prompt, to an engine
    FOUND = 2  # the engine told how much of a prompt, named by its last link, it had cached
    RESTARTED = 3  # the engine: nothing that was sent before is cached
    EJECTED = 4  # the engine, as requests failed there
    RECOVERED = 5  # it worked again


class Note(NamedTuple):
    """It happened at the engine of this URL."""

    kind: Kind
    url: str
    chain: Chain = ()
    inside: Chain = ()  # places in its last message
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def encoded(self, owner: bytes) -> bytes:
        """As it is sent. Of a very long prompt only the beginning, which is as true."""
        chain, inside, tokens = self.chain, self.inside, self.prompt_tokens
        if len(chain) > LINKS_MAX:
            chain, inside = chain[:LINKS_MAX], ()
            tokens = tokens * chain[-1].end_bytes // max(1, self.chain[-1].end_bytes)
        inside = inside[:LINKS_MAX]
        url = self.url.encode()
        counts = min(tokens, TOKENS_MAX), min(self.cached_tokens, TOKENS_MAX), len(chain), len(inside)
        head = HEAD.pack(VERSION, self.kind, owner, len(url), *counts)
        return b"".join((head, url, *(LINK.pack(*link) for link in (*chain, *inside))))

    @classmethod
    def decoded(cls, told: bytes) -> tuple[bytes, Note]:
        """Whose it is, and what it says. Raises ValueError for anything that is none."""
        try:
            version, kind, owner, size, tokens, cached, links, places = HEAD.unpack_from(told)
            begin = HEAD.size + size
            if version != VERSION or len(told) != begin + LINK.size * (links + places):
                raise ValueError("of another version, or cut")
            found = tuple(Link(*link) for link in LINK.iter_unpack(told[begin:]))
            url = told[HEAD.size : begin].decode()
            note = cls(Kind(kind), url, found[:links], found[links:], tokens, cached)
        except struct.error as fault:
            raise ValueError(f"no note: {fault}") from None
        if max(links, places) > LINKS_MAX or not (_grows(note.chain) and _grows(note.inside)):
            raise ValueError("no prompt has such links")
        if not links and note.kind in (Kind.SENT, Kind.FOUND):
            raise ValueError("of no prompt")
        return owner, note


def _grows(chain: Chain) -> bool:
    return all(link.end_bytes <= after.end_bytes for link, after in pairwise(chain))
