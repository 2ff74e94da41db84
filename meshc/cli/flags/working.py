"""Flags that say who carries out the jobs of a command."""

from __future__ import annotations

import argparse


def add_workers(parser: argparse.ArgumentParser, jobs: str) -> None:
    """Add the flags; ``jobs`` is what they carry out."""
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help=f"{jobs} at once; default: %(default)s",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help=f"carry the {jobs} out on a Dask cluster that is trusted: tcp://127.0.0.1:8786",
    )
