"""``meshc reproduce``: published tables beside predicted ones."""

from __future__ import annotations

import argparse
from pathlib import Path

from meshc.cli.printing import print_json
from meshc.cli.progress import Progress
from meshc.driver.reproduction.markdown_page import page, sections_object
from meshc.driver.reproduction.sections import chosen, made
from meshc.driver.reproduction.servers import Servers
from meshc.support.diagnostics import fail
from meshc.support.files import check_place, write_text
from meshc.support.workers import Processes


def run(options: argparse.Namespace) -> int:
    """Compare and print."""
    for flag, value, most in (
        ("--seeds", options.seeds, 1000),
        ("--processes", options.processes, 256),
    ):
        if not 1 <= value <= most:
            fail("bad-argument", f"{flag} is {value}, not 1 to {most}")
    if options.json and options.write is not None:
        fail("bad-argument", "--json is of stdout, and --write has the page", help="give one")
    names = chosen(options.tables)
    if options.write is not None:
        check_place(Path(options.write))
    with Progress() as progress:
        servers = Servers(options.seeds, workers=Processes(options.processes), watch=progress.runs)
        sections = made(names, servers, progress.say)
    if options.json:
        print_json(sections_object(sections))
    elif options.write is None:
        print(page(sections), end="")
    else:
        write_text(Path(options.write), page(sections))
    return 0
