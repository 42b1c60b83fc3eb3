"""llama.cpp's own HTTP server from its wheel: `python -m tests.real.llama_server GGUF NAME PORT SLOTS`."""

import signal
import sys

import xllamacpp


def serve(gguf: str, name: str, port: int, slots: int) -> None:
    """Serve one model on loopback until a signal ends the process."""
    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.model_alias = {name}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = 16_384
    params.kv_unified = True
    params.cont_batching = True
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.ui = False
    params.offline = True
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
