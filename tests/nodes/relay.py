"""Pass TCP connections on with a delay each way: `python relay.py PORT TO_HOST TO_PORT THERE_S BACK_S`.

Stands for a link with delays where the kernel has no netem.
"""

from __future__ import annotations

import asyncio
import sys

SIZE = 1 << 16


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Write what is read, each part as much later."""
    loop, parts = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

    async def write() -> None:
        while True:
            due_s, part = await parts.get()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            writer.write(part)
            if not part:
                writer.close()
                return
            await writer.drain()

    writing = asyncio.create_task(write())
    try:
        while True:
            part = await reader.read(SIZE)
            parts.put_nowait((loop.time() + delay_s, part))
            if not part:
                break
        await writing
    except OSError:
        writing.cancel()
        writer.close()


async def serve(port: int, host: str, to_port: int, there_s: float, back_s: float) -> None:
    """Relay until killed."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, to_port)
        await asyncio.gather(pass_on(reader, there_writer, there_s), pass_on(there_reader, writer, back_s))

    async with await asyncio.start_server(connected, "0.0.0.0", port) as server:
        print("ready", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    listen, host, to_port, there_s, back_s = sys.argv[1:]
    asyncio.run(serve(int(listen), host, int(to_port), float(there_s), float(back_s)))
