"""The commands that show models in a browser: over HTTP, and as files."""

from pathlib import Path
from typing import Annotated

from limelight.cli import io
from limelight.cli import parser as arg


def serve(
    runs: Annotated[tuple[str, ...], arg.Argument("RUN", positional=True)],
    host: Annotated[str, arg.Argument("ADDRESS")] = "127.0.0.1",
    port: arg.Int = 8000,
    device: Annotated[str, arg.Argument("DEVICE")] = "auto",
    allowed_hosts: Annotated[tuple[str, ...], arg.Argument("NAME", renamed=("--hosts",))] = (),
    allowed_origins: Annotated[tuple[str, ...], arg.Argument("URL", renamed=("--origins",))] = (),
    embed_from: Annotated[tuple[str, ...], arg.Argument("URL")] = (),
    set: arg.Settings = (),
) -> None:
    """Serve models over HTTP: a web page and an OpenAI-compatible API.

    The API is described at /docs of the running service.

    Only this machine can connect, unless --host says otherwise; then LIMELIGHT_API_KEY must be set
    in the environment. Ctrl-C and SIGTERM shut the service down gracefully. Logs go to stderr.

    Args:
        runs: run folders, each served as a model named after its folder, or bundled models by name
        host: the address to listen on
        port: the port to listen on; 0 for any free port
        device: where models run: auto, cpu, cuda, cuda:1 or mps; a list such as cuda:0,cuda:1
            starts a worker on each
        allowed_hosts: a further host name of the service, such as a proxy's; may be repeated
        allowed_origins: a web site that may call the API, such as https://example.com; may be
            repeated
        embed_from: a web site that may show the page in a frame, such as https://example.com; may
            be repeated
        set: change a limit; --limits.queue 50 is short for --set limits.queue=50
    """
    from limelight.serve.limits import limits_with
    from limelight.serve.server import serve

    limits = limits_with(set)
    serve(runs, host, port, limits, allowed_hosts, allowed_origins, device, embed_from)


def site(
    folder: Annotated[str, arg.Argument("DIR", positional=True)],
    runs: Annotated[tuple[str, ...], arg.Argument("RUN", positional=True)] = (),
) -> None:
    """Write a static site: walks through models that any file server can deliver.

    Every walk is one file with all its numbers; index.html links them. Nothing else is needed, and
    no other host is asked for anything.

    Args:
        folder: the folder for the site
        runs: run folders or models by name; without any, the bundled models
    """
    from limelight.workflows.site import write_site

    files = write_site(Path(folder), runs, io.print_line)
    size = sum(path.stat().st_size for path in files) / 1e6
    io.print_line(
        f"{len(files)} files, {size:.1f} MB: python -m http.server -d {folder} shows them"
    )
