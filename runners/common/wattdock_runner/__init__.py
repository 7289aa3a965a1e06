"""The part of a runner that every backend shares: the gRPC server, the clock, the record of a pass.

Knows no engine, and needs nothing beyond grpcio, protobuf and the standard library (Python 3.10 or newer).
"""

PROTOCOL_VERSION = 1
