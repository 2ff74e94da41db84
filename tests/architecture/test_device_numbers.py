"""Numbers of a device are asked for by name; none is replaced by a default."""

import ast

from sources import FILES, PACKAGE, nodes

LOOKUPS = {"facts", "numbers"}


def defaults(every):
    """Lines that look something up in a device and would go on without it."""
    for node in every:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            *parents, last = ast.unparse(node.func.value).split(".")
            of_device = last == "device" or (last in LOOKUPS and parents[-1:] == ["device"])
            if node.func.attr == "get" and of_device:
                yield node.lineno


def test_no_number_of_a_device_has_a_default():
    """Only ``devices`` itself looks whether a number is there, to check and to describe it."""
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in FILES
        if path.parent.name != "devices"
        for line in defaults(nodes(path))
    }
    assert found == set()


def test_the_rule_can_fail():
    text = "module.device.get('colors', 0)\ndevice.numbers.get('colors')\nfacts.get('colors')\n"
    assert list(defaults(ast.walk(ast.parse(text)))) == [1, 2]
