"""How fast an engine is by what load generators measured: their files in, samples out, and rates from these.

Three of them tell what a model needs: `llama-bench` (JSON, JSONL) prefill and decode by depth, one sequence
at a time; `llama-batched-bench` (JSONL) both by batch; `vllm bench serve`, SGLang's `bench_serving` alike,
requests over HTTP. Where a result has each request's times it is played back as a journal is; without them
only one request at a time tells reading from waiting.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard

from policies.calibration import Calibration
from policies.hindsight import hindsight
from policies.service_model import ServiceModel
from policies.traffic import Asked
from policies.types import Priority

ROUNDS = 12  # in which the samples of a file are learnt: it holds few, and each is a mean already
PASSES = 2  # from the prior, then from what was found: learning is slow to leave a prior that is far off
APART_SECONDS = 3600.0  # between two results: each had the engine for itself
BACKEND = "measured"
COUNT_MAX = 2**31 - 1  # tokens, requests
SLOTS_MAX = 65_536  # sequences side by side; vLLM has 1,024 at most by default
SECONDS_MAX = 366 * 86_400.0  # between two tokens, or for all that a result tells
CLOCK_MAX = 1e11  # seconds; clocks begin anywhere
LLAMA_CPP, VLLM, SGLANG = "llamacpp", "vllm", "sglang"

Result = Mapping[str, object]


class UnreadableResults(Exception):
    """The text holds no results that tell rates; says why."""


class Prefill(NamedTuple):
    """A prompt was read, of which so much was there already."""

    prompt_tokens: int
    cached_tokens: int
    seconds: float


class Decode(NamedTuple):
    """So many tokens followed a prompt, in each of so many sequences."""

    prompt_tokens: int
    tokens: int
    seconds: float
    batch: float


@dataclass(slots=True)
class Measured:
    """What one file tells of one engine."""

    engine: str = ""  # its kind
    models: set[str] = field(default_factory=set)
    slots: int = 1  # sequences that ran side by side
    prefills: list[Prefill] = field(default_factory=list)
    decodes: list[Decode] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def service(self, prior: ServiceModel) -> ServiceModel:
        """Its rates; what was not measured stays as in the prior, but for a factor that all rates share."""
        if self.asked:
            prior = hindsight(self.asked, prior)[BACKEND].service
        for _ in range(PASSES):
            calibration = Calibration(prior)
            for _ in range(ROUNDS):
                for prefill in self.prefills:
                    calibration.prefilled(*prefill)
                for prompt_tokens, tokens, seconds, batch in self.decodes:
                    calibration.decoded(prompt_tokens, tokens, seconds, 0.0, batch)
            prior = calibration.model
        return prior


def measured(text: str) -> Measured:
    """The results in a file. UnreadableResults: there are none, they tell no rates, or of several models."""
    found = Measured()
    unread = 0
    for result in _results(text):
        try:
            unread += not _read(result, found)
        except KeyError as error:
            raise UnreadableResults(f"a result is incomplete: it has no {error.args[0]}") from None
        except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
            raise UnreadableResults(f"a result cannot be: {error}") from None
    if len(found.models) > 1:
        raise UnreadableResults(
            f"it has results of {len(found.models)} models: {', '.join(sorted(found.models))}"
        )
    if found.asked or (found.prefills and found.decodes):
        return found
    if found.prefills or found.decodes:
        lacking = "decode" if found.prefills else "prefill"
        raise UnreadableResults(f"it tells nothing of {lacking}")
    if unread and found.engine:
        raise UnreadableResults(
            "requests ran side by side, and without the times of each (--save-detailed) nobody knows how "
            "long one was read and how long it waited"
        )
    raise UnreadableResults(
        "it has no results of llama-bench, llama-batched-bench or vllm bench serve, in JSON"
    )


def _results(text: str) -> Iterator[Result]:
    """A document, a list of them, or one a line between lines of other things."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = []
        for line in text.splitlines():
            if line.lstrip().startswith("{"):
                try:
                    whole.append(json.loads(line))
                except (ValueError, RecursionError):
                    continue
    for result in whole if isinstance(whole, list) else [whole]:
        if isinstance(result, dict):
            yield result


def _read(result: Result, found: Measured) -> bool:
    """Take what a result tells; whether it told anything."""
    if "avg_ns" in result and "n_prompt" in result:
        return _llama_bench(result, found)
    if "t_pp" in result and "t_tg" in result:
        return _batched_bench(result, found)
    if "total_input_tokens" in result and "completed" in result:
        return _serving_bench(result, found)
    return False


def _llama_bench(result: Result, found: Measured) -> bool:
    _of(result, found, LLAMA_CPP, "model_filename")
    prompt, output, depth = _count(result, "n_prompt"), _count(result, "n_gen"), _count(result, "n_depth", 0)
    seconds = _number(result, "avg_ns") / 1e9
    if prompt and not output:
        found.prefills.append(Prefill(depth + prompt, depth, seconds))
    elif output and not prompt:
        found.decodes.append(Decode(depth, output, seconds, 1))
    else:  # one after the other, and only the sum is told
        return False
    return True


def _batched_bench(result: Result, found: Measured) -> bool:
    found.engine = LLAMA_CPP
    prompt, output, batch = (_count(result, name) for name in ("pp", "tg", "pl"))
    if not 1 <= batch <= SLOTS_MAX:
        raise ValueError(f"pl is {_shown(batch)}, which is no number of sequences")
    read = 1 if result.get("is_pp_shared") else batch  # prompts, one after the other
    found.slots = max(found.slots, batch)
    if prompt:
        found.prefills.append(Prefill(prompt, 0, _number(result, "t_pp") / read))
    if output:
        found.decodes.append(Decode(prompt, output, _number(result, "t_tg"), batch))
    return True


def _serving_bench(result: Result, found: Measured) -> bool:
    kind = str(result.get("endpoint_type") or result.get("backend") or VLLM)
    _of(result, found, SGLANG if SGLANG in kind else VLLM, "model_id")
    if isinstance(result.get("start_times"), list):
        return _requests(result, found)
    completed = _count(result, "completed")
    if result.get("max_concurrency") != 1 or not completed:
        return False
    prompt = round(_number(result, "total_input_tokens") / completed)
    following = round(_number(result, "total_output_tokens") / completed) - 1
    found.prefills.append(Prefill(prompt, 0, _number(result, "mean_ttft_ms") / 1000))
    if following > 0:
        seconds = following * _number(result, "mean_tpot_ms") / 1000
        found.decodes.append(Decode(prompt, following, seconds, 1))
    return True


def _requests(result: Result, found: Measured) -> bool:
    """Each request of a result, as a journal would have it; prompts are taken to be new."""
    times = [_numbers(result["start_times"], CLOCK_MAX), _numbers(result["ttfts"])]
    following = [sum(_numbers(gaps)) for gaps in _list(result["itls"])]
    lengths = [_numbers(result[name], COUNT_MAX) for name in ("input_lens", "output_lens")]
    if len({len(column) for column in (*times, following, *lengths)}) > 1:
        raise ValueError("its lists of requests are not of one length")
    rows = [
        row for row in zip(*times, following, *lengths, strict=True) if row[1] and row[4]
    ]  # others failed
    if not rows:
        return False
    origin = min(row[0] for row in rows)
    shift = max((row.ended for row in found.asked), default=0.0) + APART_SECONDS - origin
    asked = [_asked(start + shift, *row) for start, *row in rows]
    found.asked += asked
    limit = result.get("max_concurrency")
    most = limit if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0 else len(asked)
    running = 0
    for _, change in sorted([(row.ended, -1) for row in asked] + [(row.arrived, 1) for row in asked]):
        running += change
        found.slots = max(found.slots, min(running, most))
    return True


def _asked(start: float, ttft: float, following: float, prompt: float, output: float) -> Asked:
    return Asked(
        arrived=start,
        dispatched=start,
        first=start + ttft,
        ended=start + ttft + following,
        agent="",
        priority=Priority.AGENT,
        backend=BACKEND,
        prompt_tokens=int(prompt),
        cached_tokens=0,
        output_tokens=int(output),
    )


def _of(result: Result, found: Measured, engine: str, model: str) -> None:
    found.engine = engine
    if named := result.get(model):
        found.models.add(str(named))


def _count(result: Result, name: str, default: int | None = None) -> int:
    value = result[name] if default is None else result.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= COUNT_MAX:
        raise ValueError(f"{name} is {_shown(value)}, which is no count")
    return value


def _number(result: Result, name: str) -> float:
    """One that is above zero; in nanoseconds it may be of a year."""
    value = result[name]
    if not _plausible(value, SECONDS_MAX * 1e9) or not value:
        raise ValueError(f"{name} is {_shown(value)}, which nothing can take")
    return float(value)


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{_shown(value)} is no list")
    return value


def _numbers(value: object, most: float = SECONDS_MAX) -> list[float]:
    numbers = []
    for number in _list(value):
        if not _plausible(number, most):
            raise ValueError(f"{_shown(number)} stands in a list of times or lengths")
        numbers.append(float(number))
    return numbers


def _plausible(value: object, most: float) -> TypeGuard[int | float]:
    """Whether it is a number, and neither negative nor without bound."""
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= most


def _shown(value: object) -> str:
    """As it is named in an error: of a file that can be anything, a little."""
    shown = (
        f"a number of {value.bit_length()} bits"
        if isinstance(value, int) and abs(value) > 10**18
        else repr(value)
    )
    return shown if len(shown) <= 40 else f"{shown[:40]}..."
