"""Tools of others that read MLIR: what they print of a text again, in the generic form."""

import io
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

WITHOUT = "the extra mlir is not installed"


def through_xdsl(text: str) -> str:
    """What xDSL prints of ``text``, which it verifies. Skips the test where it is not installed."""
    pytest.importorskip("xdsl", reason=WITHOUT)
    from xdsl.context import Context
    from xdsl.dialects.builtin import Builtin
    from xdsl.parser import Parser
    from xdsl.printer import Printer

    context = Context(allow_unregistered=True)
    context.load_dialect(Builtin)
    module = Parser(context, text, "module").parse_module()
    module.verify()
    out = io.StringIO()
    Printer(out, print_generic_format=True).print_op(module)
    return out.getvalue()


def through_mlir_opt(text: str) -> str:
    """What mlir-opt prints of ``text``, which it verifies. Skips the test where there is none."""
    command = mlir_opt()
    if command is None:
        pytest.skip(WITHOUT)
    flags = ["--allow-unregistered-dialect", "--mlir-print-op-generic"]
    ran = subprocess.run([command, *flags], input=text, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[:2000]
    return ran.stdout


def mlir_opt() -> str | None:
    """Where mlir-opt lies: on the path, or in the packages that bring it."""
    packages = find_spec("mlir")
    places = (packages and packages.submodule_search_locations) or ()
    found = [str(Path(place) / "bin" / "mlir-opt") for place in places]
    return next((one for one in found if Path(one).exists()), shutil.which("mlir-opt"))


def tools() -> list[Callable[[str], str]]:
    """The tools that are here."""
    found = [through_xdsl] if find_spec("xdsl") else []
    return [*found, through_mlir_opt] if mlir_opt() else found
