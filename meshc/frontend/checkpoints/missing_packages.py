"""What is said when an optional package is not installed."""

from __future__ import annotations

from typing import NoReturn

from meshc.support.diagnostics import fail


def fail_missing_extra(package: str, purpose: str) -> NoReturn:
    """Say that ``package`` of the extra ``models`` is needed for ``purpose``."""
    fail(
        "missing-extra",
        f"{purpose} needs the Python package '{package}', which is not installed",
        help="pip install 'meshc[models]'",
    )
