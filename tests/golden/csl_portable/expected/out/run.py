"""Run scaled_main on 2 x 1 PEs.

Inputs are DATA/NAME.npy, weights that or weights/NAME.npy; results are written to DATA/NAME.npy.

cs_python run.py --name out --data DATA
"""

import argparse
from pathlib import Path

import numpy as np

from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, MemcpyOrder, SdkRuntime

ROWS, COLUMNS = 1, 2
PES = (ROWS, COLUMNS)


class Core:
    """Coordinates of all PEs, ready to be broadcast against lanes."""

    def __init__(self, lanes):
        self.y, self.x = np.indices(PES + (1,) * lanes)[:2]
        self.rank_y = self.y
        self.rank_x = self.x

    def ring_x(self, p):
        return p

    def core_x(self, p):
        return p


def element(*index, where=()):
    """The logical index that each lane holds, and the conditions under which it does."""
    return index, where


def x_lanes(core, lane_0, lane_1, lane_2):
    let_0 = core.rank_x + lane_0
    let_1 = core.core_x(let_0)
    let_2 = lane_2
    return element(lane_1 + core.rank_y, let_2 + 2 * core.ring_x(let_1), where=(lane_0 <= 0,))


def w_lanes(core, lane_0, lane_1, lane_2):
    let_0 = (core.rank_x + lane_0) % 2
    let_1 = core.core_x(let_0)
    let_2 = lane_1
    return element(let_2 + 2 * core.ring_x(let_1), lane_2 + 2 * core.rank_x)


def result_lanes(core, lane_0, lane_1):
    return element(lane_0 + core.rank_y, lane_1 + 2 * core.rank_x)


# Tensor, its extents; symbol on the PE, its extents and type; what each lane holds; padding.
WEIGHTS = [
    ("w", (4, 3), "w", (2, 2, 2), np.float32,
     w_lanes, 0.0),
]
INPUTS = [
    ("x", (2, 4), "x", (2, 2, 2), np.float32,
     x_lanes, 0.0),
]
OUTPUTS = [
    ("result", (2, 3), "result", (2, 2), np.float32,
     result_lanes, 0.0),
]


def places(shape, lanes, holds):
    """Which lanes of which PEs hold an element, and where in the tensor it is."""
    grids = np.ix_(*(np.arange(n) for n in (*PES, *lanes)))
    index, where = holds(Core(len(lanes)), *grids[len(PES):])
    full = (*PES, *lanes)
    held = np.ones(full, bool)
    for condition in where:
        held = held & condition
    own = held.copy()
    for at, extent in zip(index, shape):
        held = held & (at >= 0) & (at < extent)
    return own, held, tuple(np.broadcast_to(at, full)[held] for at in index)


def words(array):
    """Elements as the 32-bit words of a copy, 16-bit ones in the low half."""
    if array.dtype.itemsize == 4:
        return array.ravel().view(np.uint32)
    return array.ravel().view(np.uint16).astype(np.uint32)


def width(dtype):
    if np.dtype(dtype).itemsize == 4:
        return MemcpyDataType.MEMCPY_32BIT
    return MemcpyDataType.MEMCPY_16BIT


def read(data, name):
    """The tensor called ``name``."""
    for folder in (data, Path("weights")):
        if (folder / f"{name}.npy").is_file():
            return np.load(folder / f"{name}.npy")
    raise SystemExit(f"there is no {data}/{name}.npy and no weights/{name}.npy")


def spread(given, inputs):
    """Tensors over the PEs: buffers by symbol. ``given`` gives a tensor by its name."""
    buffers = {}
    for name, shape, symbol, lanes, dtype, holds, pad in inputs:
        tensor = given(name)
        if tensor.shape != shape:
            raise SystemExit(f"{name}.npy has the shape {tensor.shape}, not {shape}")
        buffer = buffers.setdefault(symbol, np.zeros((*PES, *lanes), dtype))
        own, held, index = places(shape, lanes, holds)
        buffer[own] = pad
        buffer[held] = tensor[index]
    return buffers


def collected(runner):
    """Every output, gathered from the PEs: tensors by name."""
    tensors = {}
    for name, shape, symbol, lanes, dtype, holds, _ in OUTPUTS:
        _, held, index = places(shape, lanes, holds)
        tensors[name] = np.zeros(shape, dtype)
        tensors[name][index] = fetch(runner, symbol, lanes, dtype)[held]
    return tensors


def give(runner, symbol, buffer):
    """Copy a buffer to all PEs."""
    runner.memcpy_h2d(
        runner.get_id(symbol), words(buffer), 0, 0, COLUMNS, ROWS, buffer[0, 0].size,
        streaming=False, data_type=width(buffer.dtype), order=MemcpyOrder.ROW_MAJOR, nonblock=False,
    )


def fetch(runner, symbol, lanes, dtype):
    """Copy a buffer from all PEs."""
    size = int(np.prod(lanes))
    found = np.zeros(ROWS * COLUMNS * size, np.uint32)
    runner.memcpy_d2h(
        found, runner.get_id(symbol), 0, 0, COLUMNS, ROWS, size, streaming=False,
        data_type=width(dtype), order=MemcpyOrder.ROW_MAJOR, nonblock=False,
    )
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    return found.astype(bits).view(dtype).reshape(*PES, *lanes)


def cycles(runner):
    """Cycles from start to end on each PE."""
    stamps = fetch(runner, "cycles_of_run", (2, 3), np.uint16).astype(np.int64)
    times = stamps @ np.array([1, 1 << 16, 1 << 32])
    return times[..., 1] - times[..., 0]


class Program:
    """The program on its PEs, with the weights that ``given`` gives by their names.

    ``spent`` are the cycles of the last run on each PE.
    """

    def __init__(self, name, given, cmaddr=None):
        self.runner = SdkRuntime(name, cmaddr=cmaddr)
        self.runner.load()
        self.runner.run()
        self.give(spread(given, WEIGHTS))
        self.spent = None

    def give(self, buffers):
        """Copy buffers, by symbol, to all PEs."""
        for symbol, buffer in buffers.items():
            give(self.runner, symbol, buffer)

    def run(self, given):
        """The outputs by name, for inputs that ``given`` gives by theirs."""
        self.give(spread(given, INPUTS))
        self.runner.launch("run", nonblock=False)
        outputs = collected(self.runner)
        self.spent = cycles(self.runner)
        return outputs

    def stop(self):
        """Let the program end."""
        self.runner.stop()


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--name", default="out", help="directory of the compiled program")
    options.add_argument("--cmaddr", help="address of a device; the simulator without it")
    options.add_argument("--data", type=Path, default=Path("data"), help="tensors, one file each")
    chosen = options.parse_args()

    program = Program(chosen.name, lambda name: read(chosen.data, name), chosen.cmaddr)
    outputs = program.run(lambda name: read(chosen.data, name))
    for name, tensor in outputs.items():
        np.save(chosen.data / f"{name}.npy", tensor)
    spent = program.spent
    program.stop()
    print(f"{spent.max()} cycles on the slowest PE, {spent.min()} on the fastest")


if __name__ == "__main__":
    main()
