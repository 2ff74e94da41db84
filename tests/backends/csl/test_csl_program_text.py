"""Emitted text, read by an independent reader: legal ids, equal bytes, nothing of this machine."""

import getpass
import hashlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from csl_runs import PRODUCT, compiled, emit

from meshc.driver import CompileRequest, compile_loaded, load_any

OUTPUT_QUEUES = {"wse2": range(2, 6), "wse3": range(2, 8)}
INPUT_QUEUES = {"wse2": range(1, 8), "wse3": range(2, 8)}
HOST_TASKS = {21, 22, 23, 27, 28, 29, 30}
TASKS = {"wse2": set(range(31)) - HOST_TASKS, "wse3": set(range(8, 31)) - HOST_TASKS}
ROOT = Path(__file__).parents[3]


def numbers(text, builtin):
    return {int(n) for n in re.findall(rf"{builtin}\((\d+)\)", text)}


def colors(layout, rows, columns):
    """The colors that PEs are given, by running the layout's functions as Python."""
    code = re.sub(r"fn (\w+)\(([^)]*)\) i16 \{", lambda m: f"def {m[1]}({args(m[2])}):", layout)
    functions = re.findall(r"^def .*?^\}$", code, re.MULTILINE | re.DOTALL)
    space = {}
    for text in functions:
        text = text.removesuffix("}").replace("/", "//").replace(";", "")
        text = re.sub(r"if \((.*)\) \{ (return .*) \}", r"if \1: \2", text)
        if "const rest" not in text:
            exec(text, space)
    space |= {"mod": lambda a, n: a % n, "floor": lambda a, n: a // n}
    given = re.findall(r"= @get_color\((.*)\),", layout)
    return {eval(c, space, {"y": y, "x": x})
            for c in given for y in range(rows) for x in range(columns)}  # fmt: skip


def args(text):
    return ", ".join(part.split(":")[0] for part in text.split(", "))


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("mesh", ["2x2", "5x4", "1x7", "16x16"])
def test_ids_are_legal(arch, mesh, tmp_path):
    text = PRODUCT.format(m=17, k=33, n=9, accumulate="f32")
    files = emit(compiled(text, tmp_path, device=arch, mesh=mesh, dtype="f32"))
    code, layout = files["main.csl"], files["layout.csl"]
    columns, rows = map(int, mesh.split("x"))
    used = colors(layout, rows, columns)
    tasks = numbers(code, "@get_local_task_id")
    assert used and used <= set(range(21))
    assert tasks <= TASKS[arch]
    assert arch != "wse2" or not tasks & used
    assert numbers(code, "@get_output_queue") <= set(OUTPUT_QUEUES[arch])
    assert numbers(code, "@get_input_queue") <= set(INPUT_QUEUES[arch])


def declared(code):
    return re.findall(r"^(?:var|const|param|fn|task) (\w+)", code, re.MULTILINE)


@pytest.mark.parametrize("mesh", ["1x1", "3x3", "4x6"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_nothing_is_declared_in_vain(mesh, dtype, tmp_path):
    text = PRODUCT.format(m=16, k=24, n=12, accumulate=dtype)
    files = emit(compiled(text, tmp_path, device="wse2", mesh=mesh, dtype=dtype))
    for name in ("main.csl", "layout.csl"):
        code = re.sub(r"//.*", "", files[name])
        found = declared(code)
        assert len(set(found)) == len(found)
        long = [line for line in files[name].splitlines() if len(line) > 100]
        assert long == []
        unused = [w for w in found if len(re.findall(rf"\b{w}\b", code)) < 2]
        assert unused == []


def test_bytes_depend_on_the_arguments_only(tmp_path):
    """Other hash seeds, folders and environments give the same bytes, and none of these shows."""
    sums = set()
    for seed in ("1", "2"):
        folder = tmp_path / f"place_{seed}"
        folder.mkdir()
        (folder / "p.mesh").write_text(PRODUCT.format(m=9, k=8, n=7, accumulate="f32"))
        words = [sys.executable, "-m", "meshc", "compile", "p.mesh", "--target", "csl"]
        words += ["--device", "wse2", "--mesh", "3x2", "--portable", "-o", "out"]
        subprocess.run(
            words, cwd=folder, check=True, capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        texts = {p.name: p.read_text() for p in sorted((folder / "out").iterdir())}
        sums.add(hashlib.sha256(repr(texts).encode()).hexdigest())
        for text in texts.values():
            for secret in (str(tmp_path), socket.gethostname(), getpass.getuser()):
                assert len(secret) < 5 or secret not in text
    assert len(sums) == 1


def test_use_of_a_core_is_said(tmp_path):
    path = tmp_path / "p.mesh"
    path.write_text(PRODUCT.format(m=9, k=8, n=7, accumulate="f32"))
    request = CompileRequest(target="csl", device="wse2", mesh="3x3", dtype="f32")
    lines = compile_loaded(load_any(str(path), None), request).use_of_a_core("main")
    assert any(
        re.match(r"\d+ bytes of data per PE and about \d+ of code, \d+ left", line)
        for line in lines
    )
    assert any("colors" in line and "queues" in line and "task ids" in line for line in lines)
    assert any(re.match(r"ring_x: 2 hops, colors", line) for line in lines)
