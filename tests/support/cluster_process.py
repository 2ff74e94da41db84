"""A Dask cluster of worker threads in a process of its own: ``cluster_process.py WORKERS`` prints
the address of its scheduler and ends when its standard input does."""

import sys

from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(
        n_workers=int(sys.argv[1]),
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address=None,
    ) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
