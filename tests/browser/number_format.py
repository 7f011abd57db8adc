"""Numbers as the page writes them."""

import pytest


def is_share(written, share):
    """Whether "3.2%", "64%" or "< 0.1%" is how this share is written."""
    if written.startswith("<"):
        return 0 <= share < 0.001 + 1e-6
    percent = float(written.strip("%"))
    return percent == pytest.approx(100 * share, abs=0.051 if percent < 10 else 0.51)


def number_in(written):
    """A number with the minus of a typesetter."""
    return float(written.replace("\N{MINUS SIGN}", "-"))
