"""The command-line program: serve the records of a file, or get a record."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import polygpu as pg

from .service import PROTOCOLS, Service, fetch


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a file or get a record, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m polygpu.examples.pir", description="Private retrieval.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve the records of a file until Ctrl-C")
    serve.add_argument("file", type=Path)
    serve.add_argument("--record-size", type=int, default=256, help="bytes of a record (256)")
    serve.add_argument("--protocol", choices=PROTOCOLS, default="simple", help="simple, packed or folded")
    serve.add_argument("--host", default="127.0.0.1", help="address to bind to (127.0.0.1)")
    serve.add_argument("--port", type=int, default=8000)
    get = commands.add_parser("get", help="write a record to standard output")
    get.add_argument("index", type=int)
    get.add_argument("--url", default="http://127.0.0.1:8000")
    options = parser.parse_args(arguments)
    try:
        if options.command == "get":
            sys.stdout.buffer.write(fetch(options.url.rstrip("/"), [options.index])[0])
            return 0
        data = np.memmap(options.file, np.uint8, "r")
        server = PROTOCOLS[options.protocol](data, options.record_size)
        with Service(server, options.host, options.port) as service:
            layout = service.pir.layout
            print(f"{layout.count} records of {layout.size} bytes at {service.url}", end="; ")
            print(f"a record is wrong with a probability below 2^{layout.failure:.0f}", flush=True)
            service.serve_forever()
    except KeyboardInterrupt:
        return 130
    except (pg.PolyGPUError, OSError, ValueError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
