"""A log that nobody reads keeps nobody waiting, and what is dropped is counted."""

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

from limelight.run.bundled_models import find_run
from limelight.serve.worker_client import KEY
from tests.serve.samples import ROOT, Served

LOGGED = """
from limelight.serve import logs
logs.install()
for number in range(5000):
    logs.log_event("event", number=number)
print(logs.pop_dropped(), logs.pop_dropped())
"""


def logged(**streams):
    return subprocess.Popen(
        [sys.executable, "-c", LOGGED], stdout=subprocess.PIPE, text=True, cwd=ROOT, **streams
    )


def test_a_process_whose_log_nobody_reads_goes_on_and_ends():
    with logged(stderr=subprocess.PIPE) as process:
        dropped, again = map(int, process.stdout.read().split())
        assert process.wait(60) == 0
        lines = process.stderr.readlines()
    assert dropped > 1000
    assert again == 0
    assert lines[0].endswith('"number": 0}\n')
    assert len(lines) + dropped < 5000  # the others were waiting when it ended


def test_a_log_that_is_read_is_complete(tmp_path):
    """The control: as fast as a file is written, little is dropped; and the last line is there."""
    with (tmp_path / "log").open("w") as log, logged(stderr=log) as process:
        dropped, _ = map(int, process.stdout.read().split())
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) + dropped == 5000


class Unread(Served):
    """A service that nobody listens to once it is ready."""

    def read(self):
        fcntl.fcntl(self.process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        for line in self.process.stderr:
            self.log.append(line)
            if '"ready"' in line:
                return


def test_a_service_whose_log_nobody_reads_answers_and_counts():
    with Unread(find_run("writer").path, key="a key") as service:
        host, port = service.url.removeprefix("http://").split(":")
        healths = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1500
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(healths.removesuffix(b"\r\n") + b"connection: close\r\n\r\n")
            answers = b"".join(iter(lambda: connection.recv(2**16), b""))
        assert answers.count(b"HTTP/1.1 200") == 1500
        assert service.number("log_lines_dropped_total") > 300
        for name in service.worker():  # which has no use for the key
            assert KEY.encode() not in Path(f"/proc/{name}/environ").read_bytes()
        assert KEY.encode() in Path(f"/proc/{service.process.pid}/environ").read_bytes()
        assert os.environ.get("PATH", "").encode() in Path(f"/proc/{name}/environ").read_bytes()
