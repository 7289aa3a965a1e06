"""The part of a runner that every backend shares: the gRPC server, the clock, the record of a pass.

A backend is `runners/NAME/wattdock_NAME.py` with one class derived from `backend.Backend`, written against `backend`
and `serving.Engine` alone. A new kind of arrival is a member of `backend.Arrival`, named as in runner.proto; `arrivals`
decides when its requests enter, and `messages` checks what it needs.
Knows no engine, and needs nothing beyond grpcio, protobuf and the standard library (Python 3.10 or newer).
"""

PROTOCOL_VERSION = 1
