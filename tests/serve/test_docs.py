"""What docs/serve.md tells people to run is run here, and its table of limits is the true one."""

import re
import shlex
import subprocess
import sys
from dataclasses import asdict

from limelight.serve.limits import Limits
from tests.serve.samples import ROOT

PAGE = (ROOT / "docs" / "serve.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def test_every_example_works(service):
    here = service.url
    for line in [line for block in blocks("bash") for line in block.splitlines()]:
        program, quiet, url, *options = shlex.split(line.replace("http://127.0.0.1:8000", here))
        assert (program, quiet) == ("curl", "-s")  # not every machine has it
        given = dict(zip(options[::2], options[1::2], strict=True))
        headers = dict([given["-H"].split(": ")]) if given else {}
        way = "POST" if given else "GET"
        response = service.client.request(way, url, content=given.get("-d"), headers=headers)
        assert response.status_code == 200, line
        assert response.content
    scripts = blocks("py")
    assert len(scripts) == 2
    for script in scripts:
        local = script.replace("http://127.0.0.1:8000", here)
        done = subprocess.run(
            [sys.executable, "-c", local], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) >= 2


def test_the_table_of_limits_is_the_true_one():
    told = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, re.M))
    assert {name: float(value) for name, value in told.items()} == {
        name: float(value) for name, value in asdict(Limits()).items()
    }
