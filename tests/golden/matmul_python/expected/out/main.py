"""matmul on 3 columns x 2 rows of cores: maps input tensors to output tensors.

    python main.py --input x=FILE.npy --output FILE.npy

Constants are read from the folder `weights` next to this file, one `<name>.npy` each.
With several outputs, `--output NAME=FILE.npy` writes one of them.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from main_phase import main_phase
from mesh_runtime import Fabric, HostError, Mesh, PortError, TensorProgram, Weights, read_array

MESH = Mesh({"y": 2, "x": 3})


def load(weights=Path(__file__).parent / "weights", order=None):
    """The program, with its constants packed. `weights` is a folder, or arrays by name.

    `order` numbers the cores (a permutation); it changes nothing that can be seen.
    """
    tensors = weights if isinstance(weights, Mapping) else Weights(Path(weights))
    return TensorProgram(main_phase(Fabric(MESH, order)).load(tensors))


def named_file(text):
    """The name and the path of NAME=FILE.npy."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"'{text}' is no NAME=FILE.npy")
    return name, path


def arguments():
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--input", action="append", type=named_file, default=[], metavar="NAME=FILE.npy"
    )
    parser.add_argument("--output", action="append", required=True, metavar="[NAME=]FILE.npy")
    return parser.parse_args()


def main():
    """Run once; returns the exit status."""
    args = arguments()
    try:
        outputs = load().run({name: read_array(path) for name, path in args.input})
        for text in args.output:
            name, equals, path = text.rpartition("=")
            np.save(path, outputs[name if equals else next(iter(outputs))])
    except KeyError as error:
        print(f"error: there is no output {error}", file=sys.stderr)
        return 1
    except (HostError, PortError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
