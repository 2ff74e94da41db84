"""Memory that is kept for arrays that come next."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from meshc.support.freed_memory import keep_freed_memory
if len(sys.argv) > 1:
    keep_freed_memory()
array = np.ones(1 << 17)
first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    array = array + 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc maps large arrays anew")
def test_arrays_lie_where_others_did():
    """Twenty arrays of 256 pages each."""

    def new_pages(*words):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True
        )
        return int(done.stdout)

    assert 2 * new_pages("keep") < new_pages()
