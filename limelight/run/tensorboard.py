"""The log for TensorBoard too, where it is installed."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from limelight.run.log import Entry


class TensorBoardSink:
    """Writes the numbers of a log as TensorBoard's events; without TensorBoard, nothing."""

    def __init__(self, folder: Path, step: int) -> None:
        self.writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        # Events after the checkpoint that the run resumes from are removed.
        self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    def add(self, entry: Entry) -> None:
        """Write a line of the log; a full disk ends the events, and not the training."""
        kind = "validation" if entry.get("validation") else "training"
        numbers = {name: value for name, value in entry.items() if isinstance(value, float)}
        try:
            for name, value in numbers.items():
                if self.writer is not None:
                    self.writer.add_scalar(f"{kind}/{name}", value, entry["step"])
        except OSError:
            self.writer = None

    def close(self) -> None:
        with suppress(OSError):
            if self.writer is not None:
                self.writer.close()
