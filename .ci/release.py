"""Build the wheel and the sdist, and try them as somebody does who has nothing else.

    python .ci/release.py [options for pip, to find torch]      `make release` does

What it leaves in dist/ is ready to be uploaded: the files are checked, the sdist gives the same
wheel as the repository does, and the wheel works in an environment of its own.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
LARGEST = 45e6  # bytes of the wheel, models included
TRY_OUT = """
import limelight
from importlib.resources import files

model = limelight.load("en-de")
assert model.translate("Good morning.").text, "no translation"
package = files("limelight")
for name in ("py.typed", "models/en-de/card.md", "recipes/reverse.toml", "course/04-gpt.ipynb"):
    assert package.joinpath(name).is_file(), f"{name} is missing"
print(limelight.__file__)
"""


def run(*command: object, cwd: Path = ROOT) -> str:
    """Run a command with the pinned versions, also of what builds; end here if it fails."""
    print("  " + " ".join("..." if "\n" in str(c) else str(c) for c in command), flush=True)
    inherited = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    env = inherited | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, done.stderr, sep="", file=sys.stderr)
        sys.exit(f"not released: this command ended with {done.returncode}")
    return done.stdout


def inside(wheel: Path) -> list[str]:
    """The files of a wheel."""
    return sorted(ZipFile(wheel).namelist())


def build(folder: Path) -> Path:
    """The sdist and, from it, the wheel; `folder` is for another wheel, from the repository."""
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # where setuptools keeps old files
    run(sys.executable, "-m", "build")
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder)
    (wheel,), (direct,) = DIST.glob("*.whl"), folder.glob("*.whl")
    other = set(inside(wheel)) ^ set(inside(direct))
    if other:
        sys.exit(
            f"not released: the sdist and the repository give wheels that differ in {sorted(other)}"
        )
    return wheel


def complete(wheel: Path) -> None:
    """The wheel has what git has of the package: all models, recipes and files of the page."""
    tracked = run("git", "ls-files", "limelight").splitlines()
    packed = [name for name in inside(wheel) if name.startswith("limelight/")]
    other = set(tracked) ^ set(packed)
    if other:
        sys.exit(f"not released: the wheel and git differ in {sorted(other)}")
    if wheel.stat().st_size > LARGEST:
        size = wheel.stat().st_size / 1e6
        sys.exit(f"not released: the wheel has {size:.1f} MB, and may have {LARGEST / 1e6:g} MB")


def try_out(wheel: Path, folder: Path, pip_options: list[str]) -> None:
    """Install the wheel into a new environment, and use it from somewhere else."""
    run(sys.executable, "-m", "venv", folder / "venv")
    bin_folder = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    pip = [bin_folder / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, *pip_options, "torch")  # first and alone, as in the Makefile
    run(*pip, wheel)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    command = bin_folder / "limelight"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    said = run(command, "--version", cwd=elsewhere).strip()
    if version not in said.split():
        sys.exit(f"not released: limelight --version says {said!r}, pyproject.toml {version}")
    text = run(command, "translate", "en-de", "Good morning.", cwd=elsewhere).strip()
    if not text:
        sys.exit("not released: limelight translate says nothing")
    place = run(bin_folder / "python", "-c", TRY_OUT, cwd=elsewhere).strip()
    if not place.startswith(str(folder)):
        sys.exit(f"not released: what was tried is {place}")
    print(f"{said}: Good morning. -> {text}")


def main() -> None:
    """All of it, with the time it took."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        wheel = build(folder / "direct")
        complete(wheel)
        try_out(wheel, folder, sys.argv[1:])
    for file in sorted(DIST.iterdir()):
        print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1e6:.1f} MB")
    print(f"built, checked and tried in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
