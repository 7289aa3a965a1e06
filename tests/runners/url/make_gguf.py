"""Write a checkpoint as a GGUF file, in llama.cpp's environment: FOLDER FILE."""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import AutoConfig
from wattdock_llamacpp_weights import write_gguf

from wattdock_runner.checkpoint import read_config
from wattdock_runner.values import LoadOrder

order = LoadOrder(Path(sys.argv[1]))
write_gguf(order, read_config(AutoConfig, order), [int(word) for word in sys.argv[3:]], Path(sys.argv[2]))
