"""What coordinator and runners share: the wire contract with its generated code, and bounds of the files both read."""

# Of runner.proto; a coordinator takes no runner of another one.
PROTOCOL_VERSION = 4
