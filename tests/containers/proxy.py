"""A program that passes an engine's answers on, and that can be killed in the engine's place: proxy.py AT ENGINE."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path


def main() -> None:
    at, engine = sys.argv[1:]
    Path(at).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(at)
        # Whoever may not use the engine cannot use it through here.
        os.chown(at, 0, Path(engine).stat().st_gid)
        Path(at).chmod(0o660)
        door.listen()
        print("ready", flush=True)
        while True:
            caller, _ = door.accept()
            behind = socket.socket(socket.AF_UNIX)
            behind.connect(engine)
            for source, sink in ((caller, behind), (behind, caller)):
                threading.Thread(target=pump, args=(source, sink), daemon=True).start()


def pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


if __name__ == "__main__":
    main()
