"""The host of the stencil: a random field, some iterations, and NumPy's answer beside the PEs'."""

import argparse
import json

import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, MemcpyOrder, SdkRuntime

parser = argparse.ArgumentParser()
parser.add_argument("--name", required=True)
parser.add_argument("--iterations", type=int, default=2)
args = parser.parse_args()
with open(f"{args.name}/out.json", encoding="utf-8") as file:
    params = json.load(file)["params"]
width, height, depth = (int(params[name]) for name in ("width", "height", "depth"))

field = np.random.default_rng(1).integers(-99, 99, (height, width, depth)).astype(np.float32)
expected = field
for _ in range(args.iterations):
    around = np.zeros_like(expected)
    around[:, 1:] += expected[:, :-1]
    around[:, :-1] += expected[:, 1:]
    around[1:] += expected[:-1]
    around[:-1] += expected[1:]
    expected = (4 * expected + around) / np.float32(8)

runtime = SdkRuntime(args.name)
symbol = runtime.get_id("field")
runtime.load()
runtime.run()
how = {"streaming": False, "order": MemcpyOrder.ROW_MAJOR,
       "data_type": MemcpyDataType.MEMCPY_32BIT, "nonblock": False}  # fmt: skip
runtime.memcpy_h2d(symbol, field.ravel(), 0, 0, width, height, depth, **how)
runtime.launch("run", np.uint16(args.iterations), nonblock=False)
result = np.zeros(width * height * depth, np.float32)
runtime.memcpy_d2h(result, symbol, 0, 0, width, height, depth, **how)
runtime.stop()
np.testing.assert_allclose(result, expected.ravel(), rtol=1e-5, atol=1e-5)
print("SUCCESS")
