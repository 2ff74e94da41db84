"""Tile programs that the Python back end cannot serve, each with its code."""

import pytest
from emitted_texts import tile_module

from meshc.backends.python import HostFacts, emit
from meshc.support.diagnostics import MeshcError

X = 'buffer %x : f32[2] {role = in}\nport @x in f32[E] : %x {lanes = [i], element = ["i"]}\n'
Y = 'buffer %y : f32[2] {role = out}\nport @y out f32[E] : %y {lanes = [i], element = ["i"]}\n'
LOGITS = Y.replace("port @y", "port @logits")
MODEL = HostFacts("m", "embedding", 8, 4)
ARRAYS = HostFacts("m")


def module(header, body="", scalars=""):
    return tile_module(1, 2, f"dims E = 2\n {scalars}\n {header}", body)


def code(modules, host):
    with pytest.raises(MeshcError) as error:
        emit(modules, host)
    return error.value.diagnostics[0].code


@pytest.mark.parametrize(
    ("wanted", "role", "host", "header", "scalars"),
    [
        ("no-output", "main", ARRAYS, X, ""),
        ("host-scalar", "decode", MODEL, X + LOGITS, "scalars heat = 0..9"),
        ("host-ports", "decode", MODEL, X + Y, ""),
        ("host-ports", "decode", MODEL, LOGITS, ""),
        (
            "unsupported-port",
            "main",
            ARRAYS,
            Y + X.replace('element = ["i"]', 'element = ["i + pos"]'),
            "scalars pos = 0..3",
        ),
        ("unsupported-port", "main", ARRAYS, Y + X.replace("role = in", "role = state"), ""),
        (
            "unsupported-route",
            "main",
            ARRAYS,
            X + Y + 'channel @c "{ [y, x] -> [y, x - pos] : x >= 1 }"\n',
            "scalars pos = 0..3",
        ),
    ],
)
def test_refusal(wanted, role, host, header, scalars):
    body = "%t = tile.send @c, %x : token\n" if "@c" in header else ""
    assert code({role: module(header, body, scalars)}, host) == wanted
