"""Processor time of ``meshc estimate MODEL`` for the models of the catalogue, each in a process.

python benchmarks/estimate_times.py [--device wse2] [--mesh 360x360] [--mesh 750x990] MODEL ..
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

MESHES = ("360x360", "600x600", "750x990")


def seconds(model: str, device: str, mesh: str) -> float:
    """Processor seconds of the whole command; not a number where it fails."""
    before = _spent()
    command = ["-m", "meshc", "estimate", model, "--device", device, "--mesh", mesh, "--json"]
    done = subprocess.run([sys.executable, *command], capture_output=True)
    return _spent() - before if done.returncode == 0 else float("nan")


def _spent() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--device", default="wse2")
    parser.add_argument("--mesh", action="append")
    options = parser.parse_args()
    meshes = options.mesh or MESHES
    print("| model |", " | ".join(meshes), "|")
    for model in options.models:
        times = [f"{seconds(model, options.device, mesh):.1f} s" for mesh in meshes]
        print(f"| {model} |", " | ".join(times), "|", flush=True)


if __name__ == "__main__":
    main()
