"""The log of a run as a figure: loss and learning rate by step."""

from pathlib import Path

from limelight.files import with_filename
from limelight.run.log import read_log


def draw_curves(log: Path, picture: Path) -> None:
    """Draw `curves.svg` from a log; the same log gives the same bytes."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    train, valid = [], []  # only numbers: a log may be long
    for entry in read_log(log):
        if "lr" in entry:
            train.append((entry["step"], entry["loss"], entry["lr"]))
        elif "validation" in entry:
            valid.append((entry["step"], entry["loss"]))
    if not train:
        return
    steps, losses, rates = zip(*train, strict=True)
    with plt.rc_context({"svg.hashsalt": "limelight", "font.size": 9, "axes.grid": True}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
        left.plot(steps, losses, color="#9bb4d0", label="training")
        if valid:
            style = {"color": "#c0392b", "marker": "o", "markersize": 3}
            left.plot(*zip(*valid, strict=True), **style, label="validation")
        left.set(xlabel="step", ylabel="loss per token")
        left.legend()
        right.plot(steps, rates, color="#555555")
        right.set(xlabel="step", ylabel="learning rate")
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        with with_filename(picture):
            figure.savefig(picture, metadata={"Date": None})
        plt.close(figure)
