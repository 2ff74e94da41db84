"""``meshc import-torch``: a program of torch.export as a model of the language."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from meshc.cli.printing import print_diagnostics, print_json
from meshc.driver.weights import WEIGHTS_FOLDER, weight_files
from meshc.support.diagnostics import Diagnostics
from meshc.support.extras import module_of_extra
from meshc.support.output import check_free, write_directory


def run(options: argparse.Namespace) -> int:
    """Read the program; print the model, or write it with its weights."""
    if options.output is not None:
        check_free(Path(options.output), options.force)
    torch = module_of_extra("meshc.torch.exported.importing", "torch", "reading .pt2 files")
    found = torch.import_exported(options.file)
    report = Diagnostics()
    shown = {"name": found.name, "weights": sorted(found.weights)}
    if options.output is None:
        if options.json:
            print_json({**shown, "text": found.text})
        else:
            sys.stdout.write(found.text)
        return 0
    folder = Path(options.output)
    files = {f"{found.name}.mesh": found.text, **weight_files(list(found.weights), found.weights)}
    facts = {"model": found.name, "source": "torch.export"}
    write_directory(folder, files, facts, options.force, report)
    print_diagnostics(report.messages, False)
    model, weights = folder / f"{found.name}.mesh", folder / WEIGHTS_FOLDER
    if options.json:
        print_json({**shown, "model": str(model), "folder": str(weights)})
    else:
        print(f"written to {model} and {weights}: {len(found.weights)} weights")
    return 0
