"""``meshc view``: a page of what was recorded, or of a compile."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from meshc.cli.flags.what_to_compile import given_to_compile
from meshc.cli.printing import print_diagnostics, print_json
from meshc.cli.progress import Progress
from meshc.cli.spelled_requests import keeping, request_of
from meshc.driver import compile_loaded, load_any
from meshc.driver.compile_record import Recording
from meshc.driver.record_files import RECORD
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.extras import module_of_extra
from meshc.support.files import check_place, replace_file, reported, write_text
from meshc.support.output import read_manifest, write_directory
from meshc.support.scratch import scratch_folder
from meshc.view import Recorded, page_data, page_of, read_recorded


def run(options: argparse.Namespace) -> int:
    """Read or compile, and write the page."""
    folder = Path(options.model)
    recorded = os.path.isdir(folder) and (
        read_manifest(folder) is not None or (folder / RECORD).is_file()
    )
    name = f"{folder.stem if folder.is_file() else folder.name}.html"
    path = Path(options.output or (folder / "view.html" if recorded else name))
    check_place(path)
    if options.png is not None:
        check_place(Path(options.png))
        pictures = module_of_extra("meshc.view.pictures", "plots", "drawing")
    data = page_data(_read(folder, options) if recorded else _compiled(options))
    text = page_of(data)
    write_text(path, text)
    if options.png is not None:
        with reported(Path(options.png)):
            replace_file(Path(options.png), pictures.picture(data))
    if options.json:
        print_json({"page": str(path), "bytes": len(text.encode()), "picture": options.png})
    else:
        print(f"written to {path}, {len(text.encode())} bytes")
    return 0


def _read(folder: Path, options: argparse.Namespace) -> Recorded:
    """What ``folder`` holds. Fails with ``bad-argument`` for flags of a compile."""
    given = given_to_compile(options)
    others = {
        "--phase": options.phase,
        "--compile-to": options.compile_to,
        "--weights": options.weights,
    }
    given += [flag for flag, value in others.items() if value]
    if given:
        fail(
            "bad-argument",
            f"{given[0]} says what to compile, but '{folder}' is compiled",
            help="leave it out, or give it to meshc compile",
        )
    return read_recorded(folder)


def _compiled(options: argparse.Namespace) -> Recorded:
    """The record of a compile, from a temporary directory."""
    report = Diagnostics()
    request = request_of(options)
    recording = Recording(report)
    with Progress() as progress, scratch_folder() as scratch:
        loaded = load_any(options.model, report)
        request = keeping(request, options, loaded)
        compiled = compile_loaded(loaded, request, [progress, recording], report)
        compiled.files |= recording.files(compiled)
        write_directory(scratch / "program", compiled.files, compiled.facts)
        found = read_recorded(scratch / "program")
    print_diagnostics(report.messages, False)
    return found
