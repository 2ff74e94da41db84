"""Processor time of ``meshc estimate MODEL`` for the models of the catalogue, each in a process.

python benchmarks/estimate_times.py [--on wse2,360x360] [--on h200] .. MODEL ..

The modules of meshc have byte code, as those of an installation that ran before: the first command
compiles them and is not counted.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping

PLACES = ("wse2,360x360", "wse2,600x600", "wse2,750x990", "wse3,24x24", "h100", "h200")


def seconds(model: str, place: str, environment: Mapping[str, str]) -> float:
    """Processor seconds of the whole command on a device and, behind a comma, a mesh of it; not a
    number where it fails."""
    before = _spent()
    device, *mesh = place.split(",")
    where = ["--device", device, *(word for one in mesh for word in ("--mesh", one))]
    command = ["-m", "meshc", "estimate", model, *where, "--json"]
    done = subprocess.run([sys.executable, *command], capture_output=True, env=environment)
    return _spent() - before if done.returncode == 0 else float("nan")


def _spent() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--on", action="append", metavar="DEVICE[,MESH]")
    options = parser.parse_args()
    places = options.on or PLACES
    print("| model |", " | ".join(places), "|")
    with tempfile.TemporaryDirectory() as kept:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": kept}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for place in places:
            seconds(options.models[0], place, environment)
        for model in options.models:
            times = [f"{seconds(model, place, environment):.1f} s" for place in places]
            print(f"| {model} |", " | ".join(times), "|", flush=True)


if __name__ == "__main__":
    main()
