"""One real llama.cpp server in a process of its own: `python -m gateway.demo.engine --help`.

It ends with the process that started it: were that killed, nobody else would stop it.
"""

from __future__ import annotations

import argparse
import os
import time

MODEL_NAME = "smollm2-135m"


def main() -> None:
    """Load and serve until the starter is gone or a signal comes."""
    starter = os.getppid()
    parser = argparse.ArgumentParser(
        prog="python -m gateway.demo.engine", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=1, help="sequences at the same time")
    parser.add_argument("--context", type=int, default=2048, help="tokens per slot")
    parser.add_argument("--model", required=True, help="a GGUF file")
    options = parser.parse_args()

    import xllamacpp  # 100 MB: only this process needs it

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {MODEL_NAME}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.context
    # Threads of one engine spin while they wait for each other: two engines of two threads on two busy
    # cores took 270 s for what took 80 s with one thread each.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.cache_ram_mib = 256
    params.endpoint_metrics = True
    try:
        server = xllamacpp.Server(params)  # answers 503 "Loading model" until it returns
    except RuntimeError:
        raise SystemExit("llama.cpp could not start; its reason stands above.") from None
    print(f"serving {options.slots} x {options.context} tokens at {server.listening_address}", flush=True)
    while os.getppid() == starter:
        time.sleep(0.5)


if __name__ == "__main__":
    main()
