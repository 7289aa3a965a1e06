"""Train a causal language model with TensorFlow: MirroredStrategy over this machine's GPUs, or over parts of its CPU.

    python examples/train/mirrored.py --check-loss 0.8
    python examples/train/mirrored.py --cpu-devices 2 --check-loss 0.8

The model has the shape of `ddp.py`'s, or of the `config.json` that `--model` names, in plain Keras: positions are
learned, not rotated. Weights are random, tokens are bytes, and the loss falls on this file's text; `--check-loss 0.8`
exits with 1 unless it falls to 80 %.

Marked are "load", "epoch" and "step"; each ends when its work on the GPUs has ended. The all-reduce runs within
TensorFlow's graph, where the host sees neither its begin nor its end.

Needs: tensorflow 2.18, keras 3.13, wattdock-spans.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wattdock_spans import span, step, work

# Without --model: 0.6 million parameters, and a token for each byte.
SMALL = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def parse() -> argparse.Namespace:
    """Return the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path, help="a config.json (default: a small llama's)")
    add("--text", type=Path, default=Path(__file__), help="what to learn (default: this file)")
    add("--cpu-devices", type=int, help="parts of the CPU, instead of GPUs")
    add("--global-batch", type=int, default=8, help="samples of a step over all devices")
    add("--length", type=int, default=128, help="tokens of a sample")
    add("--epochs", type=int, default=4)
    add("--steps", type=int, help="of an epoch (default: the whole text)")
    add("--learning-rate", type=float, default=3e-3)
    add("--check-loss", type=float, metavar="FACTOR", help="exit with 1 unless the loss falls to this share")
    return parser.parse_args()


def devices(cpu_parts: int | None) -> list[str] | None:
    """Return the devices to train on; None is all GPUs, or the CPU."""
    if cpu_parts is None:
        return None
    tf.config.set_visible_devices([], "GPU")
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * cpu_parts)
    return [f"CPU:{number}" for number in range(cpu_parts)]


def build(shape: dict[str, Any], length: int, learning_rate: float) -> Any:
    """Return the model: tokens to logits of the next token."""
    layers, size, heads = keras.layers, shape["hidden_size"], shape["num_attention_heads"]
    tokens = keras.Input((length,), dtype="int32")
    positions = layers.Embedding(length, size)(keras.ops.arange(length))
    state = layers.Embedding(shape["vocab_size"], size)(tokens) + positions
    for _ in range(shape["num_hidden_layers"]):
        normed = layers.RMSNormalization()(state)
        attention = layers.GroupQueryAttention(size // heads, heads, shape["num_key_value_heads"], use_bias=False)
        state += attention(normed, normed, use_causal_mask=True)
        normed = layers.RMSNormalization()(state)
        gate = layers.Dense(shape["intermediate_size"], "silu", use_bias=False)(normed)
        state += layers.Dense(size, use_bias=False)(
            gate * layers.Dense(shape["intermediate_size"], use_bias=False)(normed)
        )
    logits = layers.Dense(shape["vocab_size"], use_bias=False)(layers.RMSNormalization()(state))
    model = keras.Model(tokens, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(learning_rate), loss, jit_compile=False)
    return model


def read_batches(options: argparse.Namespace) -> Any:
    """Return one epoch's batches of a text's bytes, and each next byte; the order differs from epoch to epoch."""
    content = np.frombuffer(options.text.read_bytes(), np.uint8).astype(np.int32)
    count = (len(content) - 1) // options.length
    if count == 0:
        sys.exit(f"{options.text} has {len(content)} bytes, no more than a sample of --length {options.length}")
    inputs, targets = (content[at : at + count * options.length].reshape(count, -1) for at in (0, 1))
    steps = options.steps or max(1, count // options.global_batch)
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).shuffle(count, seed=1).repeat()
    return data.batch(options.global_batch).take(steps)


class Marks(keras.callbacks.Callback):  # type: ignore[misc] # Keras comes without types
    """Marks epochs, steps and their work.

    Attributes:
        losses: Of each step: the mean since its epoch began, as Keras has it.
    """

    def __init__(self, samples: int, tokens: int) -> None:
        super().__init__()
        self._counts = {"samples": samples, "tokens": tokens}
        self.losses: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin a span."""
        self._epoch = span("epoch").__enter__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End it."""
        self._epoch.__exit__()
        print(f"epoch {epoch + 1} loss {logs['loss']:.9g}", flush=True)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin a span."""
        self._step = span("step").__enter__()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """End it, when all devices have."""
        tf.test.experimental.sync_devices()
        self._step.__exit__()
        step()
        work(**self._counts)
        self.losses.append(float(logs["loss"]))
        self.model.stop_training = not math.isfinite(self.losses[-1])


def train(options: argparse.Namespace) -> str | None:
    """Train; return why that failed, or None."""
    keras.utils.set_random_seed(1)
    with span("load"):
        strategy = tf.distribute.MirroredStrategy(devices(options.cpu_devices))
        if options.global_batch % strategy.num_replicas_in_sync:
            return f"--global-batch {options.global_batch} is no multiple of {strategy.num_replicas_in_sync} devices"
        shape = json.loads(options.model.read_text()) if options.model else SMALL
        batches = read_batches(options)
        with strategy.scope():
            model = build(shape, options.length, options.learning_rate)
    marks = Marks(options.global_batch, options.global_batch * options.length)
    model.fit(batches, epochs=options.epochs, verbose=0, callbacks=[marks])
    first, last = marks.losses[0], marks.losses[-1]
    if not math.isfinite(last):
        return f"the loss is {last} in step {len(marks.losses)}"
    if options.check_loss and last > options.check_loss * first:
        return f"the loss fell from {first:.4g} to {last:.4g}, not to {options.check_loss:g} of it"
    return None


if __name__ == "__main__":
    sys.exit(train(parse()))
