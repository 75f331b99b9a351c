"""What an engine counted, read from answers that anybody may have written."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.accounting import TokenSource, Usage

TOKENS_MAX = 2**31  # what an engine counts beyond it is no count
NOTHING: Mapping[str, object] = {}


def usage_from(chunk: Mapping[str, object]) -> Usage | None:
    """The counts in a chunk or whole answer: OpenAI's `usage`, else llama.cpp's `timings`; where both
    stand, `timings` adds only the drafts. None where neither counts anything."""
    if not (chunk.get("usage") or chunk.get("timings")):  # as most chunks
        return None
    usage, timings = table_of(chunk, "usage"), table_of(chunk, "timings")
    drafted, accepted = count_of(timings, "draft_n"), count_of(timings, "draft_n_accepted")
    prompt, completion = count_of(usage, "prompt_tokens"), count_of(usage, "completion_tokens")
    if prompt is not None or completion is not None:
        cached = count_of(table_of(usage, "prompt_tokens_details"), "cached_tokens")
        reasoning = count_of(table_of(usage, "completion_tokens_details"), "reasoning_tokens")
        return Usage(TokenSource.REPORTED, prompt, cached, completion, reasoning, drafted, accepted)
    computed, cached = count_of(timings, "prompt_n"), count_of(timings, "cache_n")
    prompt = computed + cached if computed is not None and cached is not None else None
    completion = count_of(timings, "predicted_n")
    if prompt is None and completion is None:
        return None
    return Usage(
        TokenSource.ENGINE_TIMINGS,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        spec_drafted=drafted,
        spec_accepted=accepted,
    )


def table_of(within: Mapping[str, object], name: str) -> Mapping[str, object]:
    """The object by this name; an empty one where there is none."""
    value = within.get(name)
    return value if isinstance(value, dict) else NOTHING


def count_of(within: Mapping[str, object], name: str) -> int | None:
    """The count by this name; None where there is none."""
    value = within.get(name) if within else None
    return value if type(value) is int and 0 <= value <= TOKENS_MAX else None
