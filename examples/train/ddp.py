"""Train a causal language model on one GPU, many, or the CPU: PyTorch, `torchrun`, DDP or FSDP2.

    torchrun --nproc-per-node 2 examples/train/ddp.py --check-loss 0.8
    torchrun --nproc-per-node 8 examples/train/ddp.py --fsdp --dtype bfloat16 --model llama-8b/config.json --recompute
    python examples/train/ddp.py                                                   # one process

The model has random weights, of the configuration that `--model` names; without a tokenizer beside it, tokens are
bytes. Loss falls on real text, by default this file; `--check-loss 0.8` exits with 1 unless it falls to 80 %.

Marked are "load", "warm-up", "epoch", "step", "checkpoint" and, with DDP over gloo, "communication": there the host
reduces one bucket after the other, and computes nothing meanwhile. NCCL and FSDP communicate beside computation, and
the host sees neither begin nor end, so that this is not marked. A marked span ends when its work on the GPU has ended.

Needs: torch 2.6, transformers, wattdock-spans.
"""

import argparse
import math
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from wattdock_spans import span, step, work

# Without --model: 0.6 million parameters, and a token for each byte.
SMALL = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}


def refuse(why: str) -> NoReturn:
    """End this rank; the first says why."""
    sys.exit(why if os.environ.get("RANK", "0") == "0" else 1)


def parse() -> argparse.Namespace:
    """Return the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path, help="a configuration, or a folder with one (default: a small llama)")
    add("--text", type=Path, default=Path(__file__), help="what to learn (default: this file)")
    add("--fsdp", action="store_true", help="shard the model (FSDP2) instead of copying it (DDP)")
    add("--dtype", choices=["float32", "bfloat16"], default="float32", help="of computation, with weights of float32")
    add("--weights", choices=["float32", "bfloat16"], default="float32", help="of weights, gradients and optimizer")
    add("--recompute", action="store_true", help="compute activations again in the backward pass")
    add("--batch-size", type=int, default=8, help="samples of a forward pass on one rank")
    add("--accumulate", type=int, default=1, help="forward passes of a step on one rank; more ranks, larger steps")
    add("--global-batch", type=int, help="samples of a step over all ranks, instead of --accumulate")
    add("--length", type=int, default=128, help="tokens of a sample")
    add("--epochs", type=int, default=4)
    add("--steps", type=int, help="of an epoch (default: the whole text)")
    add("--warm-up", type=int, default=0, metavar="STEPS", help="steps before the first epoch, which are not counted")
    add("--learning-rate", type=float, default=3e-3)
    add("--seed", type=int, default=1)
    add("--checkpoint-to", type=Path, help="folder for the state after each epoch; the newest there is resumed")
    add("--check-loss", type=float, metavar="FACTOR", help="exit with 1 unless the loss falls to this share")
    options = parser.parse_args()
    if absent := [path for path in (options.model, options.text) if path and not path.exists()]:
        refuse(f"there is no {absent[0]}")
    return options


def join_ranks() -> torch.device:
    """Join the other ranks, or be the only one where `torchrun` did not start this; return this rank's device."""
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if has_gpu else "gloo", **alone)
    return device


@contextmanager
def marked(name: str) -> Iterator[None]:
    """Mark a span that ends when its work on the GPU has ended."""
    with span(name):
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def average(tensor: torch.Tensor, *, is_marked: bool) -> torch.Tensor:
    """Replace a tensor by its mean over all ranks."""
    if dist.get_world_size() > 1:
        tensor /= dist.get_world_size()
        with span("communication") if is_marked else nullcontext():
            dist.all_reduce(tensor)
    return tensor


def average_bucket(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average gradients at once: beside computation, as DDP itself does it, nobody could say how long it takes."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(average(bucket.buffer(), is_marked=True))
    return done


def build(options: argparse.Namespace, device: torch.device) -> tuple[Any, Any]:
    """Return the model with its random weights, spread over the ranks, and its optimizer."""
    torch.manual_seed(options.seed)
    config = AutoConfig.from_pretrained(options.model) if options.model else AutoConfig.for_model("llama", **SMALL)
    config.use_cache = False
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, options.weights))
    model.train()
    if options.recompute:
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    if options.fsdp:
        policy = MixedPrecisionPolicy(param_dtype=getattr(torch, options.dtype), reduce_dtype=torch.float32)
        for block in [part for part in model.modules() if type(part).__name__ in model._no_split_modules]:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    elif dist.get_world_size() > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        if device.type == "cpu":
            model.register_comm_hook(None, average_bucket)
    return model, torch.optim.AdamW(model.parameters(), lr=options.learning_rate)


def read_samples(options: argparse.Namespace) -> torch.Tensor:
    """Return the text as samples × tokens, by the model's tokenizer or as bytes; a rest is not used."""
    content = options.text.read_bytes()
    if options.model and (options.model / "tokenizer.json").is_file():
        ids = AutoTokenizer.from_pretrained(options.model)(content.decode())["input_ids"]
    else:
        ids = list(content)
    count = len(ids) // options.length
    if not count:
        refuse(f"{options.text} has {len(ids)} tokens, fewer than a sample of --length {options.length}")
    return torch.tensor(ids[: count * options.length]).view(count, options.length)


def forward_passes(options: argparse.Namespace) -> int:
    """Return how many forward passes a step has on each rank."""
    together = options.batch_size * dist.get_world_size()
    passes, rest = divmod(options.global_batch or options.accumulate * together, together)
    if rest or not passes:
        refuse(f"--global-batch {options.global_batch} is no multiple of {together}, which all ranks pass at once")
    return int(passes)


def epoch_steps(
    samples: torch.Tensor, options: argparse.Namespace, epoch: int, steps: int | None
) -> Iterator[list[torch.Tensor]]:
    """Yield each step's batches of this rank; all ranks' together are the same however many ranks there are."""
    size = forward_passes(options) * options.batch_size * dist.get_world_size()
    steps = steps or max(1, len(samples) // size)
    generator = torch.Generator().manual_seed(options.seed + epoch)
    rounds = math.ceil(steps * size / len(samples))
    order = torch.cat([torch.randperm(len(samples), generator=generator) for _ in range(rounds)])
    for begin in range(0, steps * size, size):
        own = order[begin + dist.get_rank() : begin + size : dist.get_world_size()]
        yield list(samples[own].split(options.batch_size))


def train_step(model: Any, optimizer: Any, batches: Sequence[torch.Tensor], dtype: torch.dtype) -> float:
    """Take a step, and return its mean loss over all ranks; gradients are averaged once, after the last batch."""
    device = next(model.parameters()).device
    total = torch.zeros((), device=device)
    for number, batch in enumerate(batches, start=1):
        is_last = number == len(batches)
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(is_last)
        apart = model.no_sync() if isinstance(model, DistributedDataParallel) and not is_last else nullcontext()
        tokens = batch.to(device)
        with apart, torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = model(input_ids=tokens, labels=tokens).loss / len(batches)
            loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(average(total, is_marked=isinstance(model, DistributedDataParallel) and not total.is_cuda))


def state_of(model: Any, optimizer: Any, progress: dict[str, float]) -> dict[str, Any]:
    """Return what a checkpoint holds."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "progress": progress}


def newest(folder: Path) -> Path | None:
    """Return the last checkpoint that was written whole."""
    whole = [file.parent for file in folder.glob("epoch-*/.metadata")]
    return max(whole, key=lambda path: int(path.name.removeprefix("epoch-")), default=None)


def resume(folder: Path, model: Any, optimizer: Any) -> dict[str, float]:
    """Bring model and optimizer to the last checkpoint, if there is one; return how far training has come."""
    progress = {"epochs": 0, "first_loss": 0.0}
    if checkpoint := newest(folder):
        state = state_of(model, optimizer, progress)
        dcp.load(state, checkpoint_id=checkpoint)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        progress = state["progress"]
    return progress


def save(folder: Path, model: Any, optimizer: Any, progress: dict[str, float]) -> None:
    """Write a checkpoint, then remove the one before."""
    before = newest(folder)
    dcp.save(state_of(model, optimizer, progress), checkpoint_id=folder / f"epoch-{progress['epochs']}")
    if before and dist.get_rank() == 0:
        shutil.rmtree(before)


def train(options: argparse.Namespace) -> str | None:
    """Train; return why that failed, or None."""
    device = join_ranks()
    with marked("load"):
        samples = read_samples(options)
        model, optimizer = build(options, device)
        progress = {"epochs": 0, "first_loss": 0.0}
        if options.checkpoint_to:
            progress = resume(options.checkpoint_to, model, optimizer)
    dtype = torch.float32 if options.fsdp else getattr(torch, options.dtype)
    loss = progress["first_loss"]
    if options.warm_up:
        with marked("warm-up"):
            for batches in epoch_steps(samples, options, -1, options.warm_up):
                loss = train_step(model, optimizer, batches, dtype)
                progress["first_loss"] = progress["first_loss"] or loss
    for epoch in range(int(progress["epochs"]), options.epochs):
        with marked("epoch"):
            for number, batches in enumerate(epoch_steps(samples, options, epoch, options.steps), start=1):
                with marked("step"):
                    loss = train_step(model, optimizer, batches, dtype)
                count = sum(len(batch) for batch in batches)
                step()
                work(samples=count, tokens=count * options.length)
                if dist.get_rank() == 0:
                    print(f"epoch {epoch + 1} step {number} loss {loss:.9g}", flush=True)
                if not math.isfinite(loss):
                    return f"the loss is {loss} in step {number} of epoch {epoch + 1}"
                progress["first_loss"] = progress["first_loss"] or loss
        progress["epochs"] = epoch + 1
        if options.checkpoint_to:
            with marked("checkpoint"):
                save(options.checkpoint_to, model, optimizer, progress)
    if options.check_loss and loss > options.check_loss * progress["first_loss"]:
        return f"the loss fell from {progress['first_loss']:.4g} to {loss:.4g}, not to {options.check_loss:g} of it"
    return None


if __name__ == "__main__":
    failure = train(parse())
    if failure and dist.get_rank() == 0:
        print(failure, file=sys.stderr, flush=True)
    # `torchrun` ends the others as soon as one of them fails.
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(1 if failure else 0)
