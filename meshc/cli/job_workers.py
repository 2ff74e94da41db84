"""From flags to who carries out the jobs of a command."""

from __future__ import annotations

import argparse

from meshc.support.diagnostics import fail
from meshc.support.extras import module_of_extra
from meshc.support.workers import Processes, Workers


def workers_of(options: argparse.Namespace) -> Workers:
    """Processes of this machine, or a Dask cluster. Raises ``bad-argument``,
    ``missing-extra``."""
    if not 1 <= options.processes <= 256:
        fail("bad-argument", f"--processes is {options.processes}, not 1 to 256")
    if options.scheduler is None:
        return Processes(options.processes)
    if options.processes > 1:
        fail("bad-argument", "--processes are of this machine, --scheduler has workers of its own")
    cluster = module_of_extra("meshc.support.cluster", "cluster", "a Dask cluster")
    found: Workers = cluster.Cluster(options.scheduler)
    return found
