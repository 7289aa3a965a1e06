"""What coordinator and runners share: the wire contract with its generated code, and bounds of the files both read."""

# Version of runner.proto; a coordinator refuses a runner of another version.
PROTOCOL_VERSION = 4
