"""Tile programs by hand, as text."""

from types import MappingProxyType

from meshes import mesh_text


def tile_program(body, header="", rows=1, columns=3, dtype="f32", mesh=MappingProxyType({})):
    """A module with three buffers of four elements, all loaded and read back, and ``header``."""
    names = "abc"
    buffers = "".join(f"  buffer %{n} : {dtype}[4] {{role = in}}\n" for n in names)
    ports = "".join(
        f"  port @{port} {way} {dtype}[Y, X, N] : %{n} {{lanes = [i], element = [y, x, i]}}\n"
        for n in names
        for port, way in ((n, "in"), (f"{n}_after", "out"))
    )
    return (
        f"module @t level(tile) {{\n  dims Y = {rows}, X = {columns}, N = 4\n"
        f"  scalars pos = 0..2\n  mesh {mesh_text(rows, columns, **mesh)}\n"
        f"{buffers}{header}{ports}  program @main {{\n{body}  }}\n}}\n"
    )


def chain(name="chain_x_1"):
    """A channel from each core to the one before it."""
    return f'  channel @{name} "{{ [y, x] -> [y, x - 1] : x >= 1 }}"\n'


def cast(last=2):
    """A channel from the first core of a row to all others."""
    reach = f"_x >= 1 and _x <= {last}"
    return f'  channel @cast_x "{{ [y, x] -> [y, _x] : {reach} and x = 0 }}" {{multicast = true}}\n'


def exchange(channel, number=1, sends="x >= 1", gets="x <= 1", view="", wait=True):
    """A send of %a and a receive into %b."""
    text = (
        f'    %s{number} = tile.send @{channel}, %a{view} {{when = "{sends}"}} : token\n'
        f'    %r{number} = tile.recv @{channel}, %b{view} {{when = "{gets}"}} : token\n'
    )
    return text + (f"    tile.wait %s{number}, %r{number}\n" if wait else "")
