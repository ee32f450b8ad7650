"""The command ``flow serve``, which imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from flow_core.base.errors import ConfigError
from flow_core.cli.options import FiniteRange
from flow_serve.settings import MIB, Batching, Limits

_DEFAULT, _BATCHING = Limits(), Batching()


def add_commands(cli: Any) -> None:
    """Add the command to a click group."""
    cli.add_command(serve_command)


def _seconds(default: float, text: str) -> Any:
    return {"type": FiniteRange(min=0), "default": default, "show_default": True, "help": text}


def _count(default: int, text: str, most: int | None = None) -> Any:
    kind = click.IntRange(1, most)
    return {"type": kind, "default": default, "show_default": True, "metavar": "N", "help": text}


@click.command("serve", short_help="Serve models over HTTP.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Use this address.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Use this port; 0 for a free one.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Let clients in with the token in this file, or in FLOW_SERVE_TOKEN.",
)
@click.option(
    "--device",
    type=click.Choice(("cpu", "gpu")),
    default="cpu",
    show_default=True,
    help="Use devices of this type.",
)
@click.option("--workers", **_count(1, "Start N processes that compute; each has all models."))
@click.option("--versions", **_count(1, "Use the N latest versions of each model."))
@click.option(
    "--max-batch",
    **_count(_BATCHING.rows, "Use batches of up to N rows; 1 turns batching off.", 4096),
)
@click.option("--batch-wait", metavar="MS", **_seconds(0.0, "Let a request wait for others."))
@click.option("--max-body", **_count(_DEFAULT.body // MIB, "Let a request have N MiB."))
@click.option(
    "--max-bodies", **_count(_DEFAULT.bodies // MIB, "Let all requests together have N MiB.")
)
@click.option(
    "--max-connections", **_count(_DEFAULT.connections, "Let clients have N connections.")
)
@click.option("--max-queue", **_count(_DEFAULT.queue, "Let N requests per model wait."))
@click.option("--timeout", **_seconds(_DEFAULT.seconds, "Stop a request after these seconds."))
@click.option(
    "--client-timeout",
    **_seconds(_DEFAULT.client_seconds, "Stop clients that are slower than this."),
)
@click.option(
    "--run-timeout", **_seconds(_DEFAULT.run_seconds, "Stop a batch after these seconds.")
)
@click.argument("folder", metavar="MODEL_DIR", type=click.Path(exists=True, file_okay=False))
def serve_command(folder: str, host: str, port: int, **options: Any) -> None:
    """Serve the models in MODEL_DIR by the KServe v2 protocol over HTTP.

    MODEL_DIR has a folder per model, with a folder per version, as flow.saved_model.ModelBuilder
    writes it; with flow-onnx, a version may be a file model.onnx in such a folder.  MODEL_DIR may
    also be the folder of one model.

    SIGHUP reloads the models.  SIGTERM and Ctrl-C end the server after it has answered the requests
    that it has accepted.
    """
    if sys.platform == "win32":
        raise click.ClickException("flow serve needs a POSIX system")
    import asyncio
    import logging

    from flow_serve.pool import Setup
    from flow_serve.server import bind, check_token, serve

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("flow_serve").setLevel(logging.INFO)
    token = _token(options["token_file"])
    check_token(host, token)
    limits = Limits(
        body=options["max_body"] * MIB,
        bodies=options["max_bodies"] * MIB,
        connections=options["max_connections"],
        queue=options["max_queue"],
        seconds=options["timeout"],
        client_seconds=options["client_timeout"],
        run_seconds=options["run_timeout"],
    )
    batching = Batching(options["max_batch"], options["batch_wait"] / 1000)
    setup = Setup((), batching, limits, options["workers"], options["device"])
    with bind(host, port) as listener:
        try:
            asyncio.run(
                serve(Path(folder), setup, listener, token, options["versions"], click.echo)
            )
        except KeyboardInterrupt:  # before the server handles signals
            raise click.Abort from None


def _token(path: Path | None) -> str:
    if path is None:
        return os.environ.get("FLOW_SERVE_TOKEN", "").strip()
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"reading the token in {path}", found=str(error)) from error
