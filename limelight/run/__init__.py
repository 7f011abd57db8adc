"""The run folder, and the crash-safe committer behind it.

Read in this order: `commit` (all or nothing), `log` (what happened), `folder` (what lies
where), `curves` and `board` (the log as a picture).
"""
