"""The log of a run as a figure: loss and learning rate by step."""

from pathlib import Path

from limelight.files import with_filename
from limelight.run.log import read_log


def draw_curves(log: Path, picture: Path) -> None:
    """Draw `curves.svg` from a log; the same log gives the same bytes."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    entries = list(read_log(log))
    train = [entry for entry in entries if "lr" in entry]
    valid = [entry for entry in entries if entry.get("validation")]
    if not train:
        return
    with plt.rc_context({"svg.hashsalt": "limelight", "font.size": 9, "axes.grid": True}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
        steps = [entry["step"] for entry in train]
        left.plot(steps, [e["loss"] for e in train], color="#9bb4d0", label="training")
        if valid:
            points = ([e["step"] for e in valid], [e["loss"] for e in valid])
            style = {"color": "#c0392b", "marker": "o", "markersize": 3}
            left.plot(*points, **style, label="validation")
        left.set(xlabel="step", ylabel="loss per token")
        left.legend()
        right.plot(steps, [e["lr"] for e in train], color="#555555")
        right.set(xlabel="step", ylabel="learning rate")
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        with with_filename(picture):
            figure.savefig(picture, metadata={"Date": None})
        plt.close(figure)
