"""The part of a runner that every backend shares: gRPC server, clock, the loop of continuous batching, records.

A backend is one folder, `runners/NAME/`, of about 100 to 150 lines: `wattdock_NAME.py` with a subclass of
`backend.Backend`, which names the module that makes a subclass of `serving.Engine`. `Engine.add` starts a request,
`Engine.step` returns new tokens, `Engine.drain` waits until the accelerators are idle; `serving.serve` does everything
between. Its author reads `backend` and `serving`, and takes what helps from `arguments` (engine arguments out of an
engine's source), `checkpoint` (tokenizers, random weights) and `gpus`. docs/how-to/adding-a-backend.md makes one.

In: the calls of runner.proto, a backend.
Out: `LoadedModel`, `RequestRecord` and `Span` as messages of runner.proto, on CLOCK_MONOTONIC.
Must not know: engines; anything beyond grpcio, protobuf and the standard library (Python 3.10 or newer); energy.
"""
