"""``meshc sim run --report``: a host script whose programs are recorded, and the page of what they
left on the fabric."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from meshc.driver.recorded_runs import write_run
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.files import write_text
from meshc.support.output import check_free
from meshc.support.scratch import scratch_folder
from meshc.view import page_data, page_of, read_recorded


def run_reported(options: argparse.Namespace) -> int:
    """Run the script, and give its exit code. Fails with ``bad-argument`` where it brought no
    program to its end, and with what writing a directory fails with."""
    folder = Path(options.report).absolute()
    check_free(folder)
    with scratch_folder() as scratch:
        found = scratch / "fabrics"
        options.fabric = str(found)
        code = _ended(options)
        told = found.read_text(encoding="utf-8") if found.is_file() else ""
    fabrics = [json.loads(line) for line in told.splitlines()]
    if fabrics:
        size = _write(folder, Path(options.script).name, fabrics)
        page = Path(options.report) / "view.html"
        print(f"written to {page}, {size} bytes", file=sys.stderr)
    elif code == 0:
        fail(
            "bad-argument",
            f"--report: '{options.script}' brought no program to its end",
            help="what is shown is what is there when the script stops its runtime",
        )
    return code


def _ended(options: argparse.Namespace) -> int:
    """The exit code of a script, which may end as it likes."""
    try:
        return int(options.handler(options))
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)


def _write(folder: Path, script: str, fabrics: list[dict[str, Any]]) -> int:
    """Write what ``meshc view`` reads, and the page; how many bytes that has."""
    report = Diagnostics()
    arches = ", ".join(dict.fromkeys(one["arch"] for one in fabrics))
    facts = {"programs": len(fabrics)}
    write_run(folder, "simulated program", script, arches, facts, [], report, fabrics)
    text = page_of(page_data(read_recorded(folder)))
    write_text(folder / "view.html", text)
    return len(text.encode())
