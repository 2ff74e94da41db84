"""``meshc tune``: configurations of a model on a device, and which of them nothing else beats."""

from __future__ import annotations

import argparse
from pathlib import Path

from meshc.cli.job_workers import workers_of
from meshc.cli.pictures import check_picture, write_picture
from meshc.cli.printing import print_json
from meshc.cli.progress import Progress
from meshc.cli.spelled_requests import keeping
from meshc.cli.tunings import tuning_object, tuning_tables
from meshc.devices import device
from meshc.driver import CompileRequest, load_any
from meshc.driver.tuning.fronts import MEASURES
from meshc.driver.tuning.tuner import TuneRequest, tune
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.extras import module_of_extra
from meshc.support.freed_memory import keep_freed_memory

_SHARED = ("device", "seq", "layers", "dtype", "keep_quantised", "weights")
"""Flags that all configurations share, as ``meshc estimate`` has them."""


def run(options: argparse.Namespace) -> int:
    """Try and print."""
    keep_freed_memory()
    if options.against not in MEASURES:
        words = " or ".join(MEASURES)
        fail("bad-argument", f"--against cannot be '{options.against}'", help=f"it is {words}")
    if options.weights and options.keep_quantised is None:
        fail("bad-argument", "--weights is given, and it is of --keep-quantised stored or possible")
    workers, picture = workers_of(options), None
    if options.plot is not None:
        check_picture(options.plot)
        picture = module_of_extra("meshc.driver.tuning.pictures", "plots", "drawing")
    on_cores = device(options.device).kind == "mesh"
    loaded = load_any(options.model, Diagnostics())
    shared = CompileRequest(
        device=options.device,
        phase=options.phase,
        layers=options.layers,
        dtype=options.dtype,
        seq=options.seq,
        algo=tuple(options.algo),
    )
    request = TuneRequest(
        keeping(shared, options, loaded),
        tuple(dict.fromkeys(options.mesh)),
        tuple(dict.fromkeys(options.gpus)),
        tuple(dict.fromkeys(options.batch)),
        options.against,
        None if options.results is None else Path(options.results),
    )
    with Progress() as progress:
        found = tune(loaded, request, workers, progress.say)
    if picture is not None:
        across = (
            ("cores" if on_cores else "GPUs") if options.against == "cores" else "bytes of each"
        )
        write_picture(Path(options.plot), picture.tuning_picture(found, across))
    if options.json:
        print_json(tuning_object(found, on_cores))
    else:
        print("\n".join(tuning_tables(found, _given(options), on_cores)))
    return 0


def _given(options: argparse.Namespace) -> list[str]:
    """What ``meshc estimate`` is given beside a configuration."""
    found = [options.model]
    for name in _SHARED:
        value = getattr(options, name)
        if value not in (None, ""):
            found += [f"--{name.replace('_', '-')}", str(value)]
    for text in options.algo:
        found += ["--algo", text]
    return found
