"""What coordinator and runners share: the wire contract with its generated code, and bounds of the files both read."""
