"""The folder of a run, and what keeps it whole. So far: the committer behind checkpoints."""
