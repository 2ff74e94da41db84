"""The program in which all cores of a line give what they have, from the template of the tests."""

from pathlib import Path
from string import Template

TEMPLATE = Path(__file__).parents[1] / "data" / "turns.meshir.template"


def all_gather(rows, columns, axis, each, rounds=1, words=1):
    """``own[y, x, each]`` to ``all[y, x, rounds, steps]`` along ``axis``, ``words`` a message."""
    size = columns if axis == "x" else rows
    far = ("[y, _x]", "_x") if axis == "x" else ("[_y, x]", "_y")
    return Template(TEMPLATE.read_text()).substitute(
        rows=rows,
        columns=columns,
        axis=axis,
        each=each,
        words=words,
        rounds=rounds,
        steps=size * each,
        last=size - 1,
        up=f"{far[0]} : {axis} < {far[1]} and {far[1]} <= {size - 1}",
        down=f"{far[0]} : {far[1]} >= 0 and {far[1]} <= {axis}",
    )
