"""Engines by what load generators wrote: files in the shapes of each, made for this by known rates."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from gateway.engines import ENGINES
from policies.measured import Measured, UnreadableResults, measured
from policies.service_model import ServiceModel
from policies.simulation.engine import Engine, Job
from policies.simulation.profile import CacheKind, Profile
from policies.simulation.workload import Segment, Turn
from tests.unit.test_cli_simulate import run

# Nothing like any prior.
TRUE = Profile(
    name="true",
    slots=8,
    context_tokens=131_072,
    setup_seconds=0.02,
    latency_seconds=0.0,
    short_rate=3000.0,
    long_rate=2500.0,
    quadratic_seconds=2e-9,
    decode_base_seconds=0.010,
    decode_step_seconds=0.004,
    decode_context_seconds=2e-7,
    starved_rate=1.0,
    prefill_slowdown=0.0,
    chunk_tokens=2048,
    cache=CacheKind.SLOT,
    cache_tokens=1,
)


def lines(results: Iterable[object]) -> str:
    return "".join(f"{json.dumps(result)}\n" for result in results)


def llama_bench(model: str = "models/one.gguf") -> list[dict[str, object]]:
    """`-p 512,2048,8192 -n 128 -d 0,4096,16384`."""
    common: dict[str, object] = {
        "build_commit": "0",
        "model_filename": model,
        "n_batch": 2048,
        "n_ubatch": 512,
    }
    rows = []
    for depth in (0, 4096, 16_384):
        for prompt in (512, 2048, 8192):
            seconds = TRUE.prefill_seconds(depth + prompt, depth)
            rows.append(common | _bench(prompt, 0, depth, seconds))
        rows.append(common | _bench(0, 128, depth, 128 * TRUE.token_seconds(1, depth + 64)))
    return rows


def _bench(prompt: int, output: int, depth: int, seconds: float) -> dict[str, object]:
    rate = (prompt + output) / seconds
    nanoseconds = round(seconds * 1e9)
    return {
        "n_prompt": prompt,
        "n_gen": output,
        "n_depth": depth,
        "avg_ns": nanoseconds,
        "stddev_ns": 0,
        "avg_ts": rate,
        "stddev_ts": 0.0,
        "samples_ns": [nanoseconds],
        "samples_ts": [rate],
    }


def batched_bench(*, shared: bool = False) -> list[dict[str, object]]:
    """`-npp 512,4096 -ntg 128 -npl 1,2,4,8`."""
    rows: list[dict[str, object]] = []
    for prompt in (512, 4096):
        for batch in (1, 2, 4, 8):
            read = TRUE.prefill_seconds(prompt, 0) * (1 if shared else batch)
            made = 128 * TRUE.token_seconds(batch, prompt + 64)
            row = {"n_kv_max": 65_536, "is_pp_shared": int(shared), "pp": prompt, "tg": 128, "pl": batch}
            rows.append(row | {"t_pp": read, "speed_pp": 1.0, "t_tg": made, "speed_tg": 1.0})
    return rows


def serving_bench(at_once: int, *, detailed: bool) -> dict[str, object]:
    """`--max-concurrency N`, each client with its next prompt as soon as it has its answer."""
    engine = Engine(TRUE)
    left = [(500 + 977 * number % 9000, 40 + 13 * number % 200) for number in range(40)]
    jobs: list[Job] = []

    def ask(now: float) -> None:
        if left:
            prompt, output = left.pop()
            number = 2 * len(jobs)
            job = Job(f"{number}", Turn((Segment(number, prompt),), output, number + 1), now)
            jobs.append(job)
            engine.submit(job, now)

    for _ in range(at_once):
        ask(0.0)
    while engine.jobs:
        now = engine.next_event()
        for moved in engine.advance(now):
            if moved.ended is not None:
                ask(now)
    firsts = [(job.first or 0.0) - job.submitted for job in jobs]
    rests = [(job.ended or 0.0) - (job.first or 0.0) for job in jobs]
    outputs = [job.turn.output_tokens for job in jobs]
    paces = [rest / (output - 1) for rest, output in zip(rests, outputs, strict=True)]
    result: dict[str, object] = {
        "date": "20261130-000000",
        "endpoint_type": "openai-chat",
        "model_id": "one",
        "request_rate": "inf",
        "max_concurrency": at_once,
        "completed": len(jobs),
        "total_input_tokens": sum(job.turn.prompt_tokens for job in jobs),
        "total_output_tokens": sum(outputs),
        "mean_ttft_ms": 1000 * sum(firsts) / len(jobs),
        "mean_tpot_ms": 1000 * sum(paces) / len(jobs),
    }
    if detailed:
        result |= {
            "start_times": [7000.0 + job.submitted for job in jobs],
            "ttfts": firsts,
            "itls": [[pace] * (output - 1) for pace, output in zip(paces, outputs, strict=True)],
            "input_lens": [job.turn.prompt_tokens for job in jobs],
            "output_lens": outputs,
            "errors": [""] * len(jobs),
        }
    return result


def service(found: Measured) -> ServiceModel:
    return found.service(ENGINES[found.engine].service)


def test_llama_bench_tells_rates_by_depth() -> None:
    """As a list or by lines; one sequence at a time."""
    found = measured(json.dumps(llama_bench()))
    assert measured(lines(llama_bench())) == found
    assert (found.engine, found.slots) == ("llamacpp", 1)
    model = service(found)
    for depth, prompt in ((0, 1000), (0, 8000), (8000, 2000)):
        true = TRUE.prefill_seconds(depth + prompt, depth)
        assert model.prefill_seconds(depth + prompt, depth) == pytest.approx(true, rel=0.15)
    for depth in (0, 4096, 16_384):
        assert model.token_seconds(1, depth) == pytest.approx(TRUE.token_seconds(1, depth), rel=0.1)


@pytest.mark.parametrize("shared", [False, True])
def test_batched_bench_tells_rates_by_batch(shared: bool) -> None:
    """Between lines of a log; prompts that are read together take one after the other."""
    text = f"main: n_kv_max = 65536\n\n{lines(batched_bench(shared=shared))}\nllama_perf: total time = 1 ms\n"
    found = measured(text)
    assert (found.engine, found.slots) == ("llamacpp", 8)
    model = service(found)
    for batch in (1, 4, 8):
        assert model.token_seconds(batch, 1000) == pytest.approx(TRUE.token_seconds(batch, 1000), rel=0.1)
    assert model.prefill_seconds(4096) == pytest.approx(TRUE.prefill_seconds(4096, 0), rel=0.1)


def test_requests_of_a_serving_bench_are_played_back() -> None:
    """Any number at a time, and several results in one file."""
    runs = [serving_bench(at_once, detailed=True) for at_once in (1, 4, 8)]
    found = measured(lines(runs))
    assert (found.engine, found.slots, len(found.asked)) == ("vllm", 8, 120)
    model = service(found)
    assert model.prefill_seconds(6000) == pytest.approx(TRUE.prefill_seconds(6000, 0), rel=0.15)
    for batch in (1, 8):
        assert model.token_seconds(batch, 5000) == pytest.approx(TRUE.token_seconds(batch, 5000), rel=0.2)


def test_means_of_one_request_at_a_time_tell_rates() -> None:
    """Nothing waits there."""
    found = measured(json.dumps(serving_bench(1, detailed=False)))
    [prefill], [decode] = found.prefills, found.decodes
    model = service(found)
    assert model.first_token(prefill.prompt_tokens) == pytest.approx(prefill.seconds, rel=0.05)
    assert decode.seconds == pytest.approx(
        model.decode_seconds(decode.tokens, 1, decode.prompt_tokens), rel=0.05
    )


def test_requests_that_failed_tell_nothing() -> None:
    """They have no first token."""
    result = serving_bench(2, detailed=True)
    for name, value in (
        ("start_times", 7000.0),
        ("ttfts", 0.0),
        ("itls", []),
        ("input_lens", 9),
        ("output_lens", 0),
    ):
        column = result[name]
        assert isinstance(column, list)
        column.append(value)
    assert len(measured(json.dumps(result)).asked) == 40


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no results of llama-bench"),
        ("| pp512 | 400 t/s |", "no results of llama-bench"),
        ('{"throughput": 4}', "no results of llama-bench"),
        ("[1, 2]", "no results of llama-bench"),
        (lines(llama_bench()[:3]), "nothing of decode"),
        (lines(llama_bench()[3:4]), "nothing of prefill"),
        (
            lines([*llama_bench(), *llama_bench("models/two.gguf")]),
            "2 models: models/one.gguf, models/two.gguf",
        ),
        (lines([{"avg_ns": 5, "n_prompt": 512}]), "incomplete: it has no n_gen"),
        (lines([{"avg_ns": "x", "n_prompt": 512, "n_gen": 0}]), "avg_ns is 'x'"),
        ("[" * 100_000, "no results of llama-bench"),
        ('{"a":' * 100_000, "no results of llama-bench"),
        *(
            (lines([row | {name: value}]), f"{name} is ")
            for row, names in (
                (_bench(512, 0, 0, 1.0), ("n_prompt", "n_depth", "avg_ns")),
                (_bench(0, 128, 0, 1.0), ("n_gen", "avg_ns")),
                (batched_bench()[0], ("pp", "tg", "pl", "t_pp", "t_tg")),
                (serving_bench(1, detailed=False), ("total_input_tokens", "mean_ttft_ms", "mean_tpot_ms")),
            )
            for name in names
            for value in (math.nan, math.inf, -512, True, 10**300, 1e25, "x", None, [])
        ),
        (lines([batched_bench()[0] | {"pl": 1_000_000_000}]), "pl is 1000000000"),
        *(
            (
                lines([serving_bench(4, detailed=True) | {name: [[value]] if name == "itls" else [value]}]),
                "in a list",
            )
            for name in ("start_times", "ttfts", "itls", "input_lens", "output_lens")
            for value in (math.nan, math.inf, -1, True, 10**300, 1e25, "x", None)
        ),
        (lines([serving_bench(4, detailed=False)]), "--save-detailed"),
        (lines([serving_bench(4, detailed=True) | {"itls": 3}]), "3 is no list"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, why: str) -> None:
    """In one clause that says what is missing."""
    with pytest.raises(UnreadableResults) as told:
        measured(text)
    assert why in str(told.value)
    assert "\n" not in str(told.value)


# -- the command ------------------------------------------------------------------------------------


def test_a_measured_engine_plays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Under the file's name, beside others, with the slots that are asked for, else those that were used."""
    path = tmp_path / "box.jsonl"
    path.write_text(lines(batched_bench()))
    some = ("simulate", "--fit", str(path), "--agents", "2", "--seeds", "1", "--policy", "slotgate")
    code, out, _ = run(capsys, *some, "--json", "--engine", "ds4-64k", "--mode", "strict")
    assert code == 0
    assert json.loads(out)["engines"] == ["ds4-64k", "box"]
    few, many = (json.loads(run(capsys, *some, *extra, "--json")[1]) for extra in (("--slots", "1"), ()))
    waits = [found["rows"][0]["figures"]["wait_seconds_max"] for found in (few, many)]
    assert waits[0] > waits[1]


@pytest.mark.parametrize(
    ("content", "arguments", "why"),
    [
        ("no results", (), "no results of llama-bench"),
        (None, (), "No such file"),
        ("", ("--slots", "4"), "no results of llama-bench"),
    ],
)
def test_a_file_that_tells_nothing_is_refused(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    content: str | None,
    arguments: tuple[str, ...],
    why: str,
) -> None:
    """In one sentence that names the file."""
    path = tmp_path / "box.jsonl"
    if content is not None:
        path.write_text(content)
    code, out, err = run(capsys, "simulate", "--fit", str(path), *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert why in err
    assert "box.jsonl" in err


def test_slots_belong_to_a_measured_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """The profiles have theirs."""
    code, _, err = run(capsys, "simulate", "--slots", "4")
    assert code == 2
    assert "--fit" in err
