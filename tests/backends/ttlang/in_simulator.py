"""Runs programs one after the other: tt-lang-sim in_simulator.py DIR.."""

import runpy
import sys

for folder in [word for word in sys.argv[1:] if word != "--"]:
    known, path = set(sys.modules), list(sys.path)
    sys.argv = ["run.py", f"{folder}/tensors.npz", f"{folder}/results.npz"]
    runpy.run_path(f"{folder}/run.py", run_name="__main__")
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if name in ("tiles", "main", "prefill"):
            del sys.modules[name]
