"""What is public says what it is, and nobody has to guess of what a docstring speaks."""

import ast

from sources import FILES, ROOT, nodes, tree

DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
NODE_METHODS = ("eval_", "exec_")
"""Names of methods that begin so end in that of a node of CSL's tree, which says what it is."""


def definitions(module):
    """Each class and function with the path of names to it, those within functions left out."""
    todo = [(module, ())]
    while todo:
        outer, names = todo.pop()
        for inner in ast.iter_child_nodes(outer):
            if isinstance(inner, DEFINITIONS):
                yield inner, (*names, inner.name)
                if isinstance(inner, ast.ClassDef):
                    todo.append((inner, (*names, inner.name)))


def bases(modules):
    """The names of the bases of every class, and the documented members of each, by its name."""
    found = {}
    for module in modules:
        for node, _ in definitions(module):
            if isinstance(node, ast.ClassDef):
                above, said = found.setdefault(node.name, (set(), set()))
                above |= {ast.unparse(b).partition("[")[0].rpartition(".")[2] for b in node.bases}
                members = [one for one in node.body if isinstance(one, DEFINITIONS)]
                said |= {one.name for one in members if ast.get_docstring(one)}
                fields = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
                said |= {ast.unparse(one) for one in fields}
    return found


def is_said_above(known, owner, name):
    """Whether a class above ``owner`` says what its member ``name`` is."""
    todo, seen = [owner], set()
    while todo:
        above = known.get(todo.pop(), (set(), set()))[0] - seen
        if any(name in known[one][1] for one in above if one in known):
            return True
        seen |= above
        todo += above
    return False


def needs_none(known, node, names):
    """Whether ``node`` is private, or something else says what it is: a class above it, the node of
    a tree or, of what a protocol only asks for, the class that has it."""
    if any(name.startswith("_") for name in names) or isinstance(node, ast.ClassDef):
        return any(name.startswith("_") for name in names)
    decorators = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
    return (
        bool(decorators & {"overload", "setter"})
        or node.name.startswith(NODE_METHODS)
        or ast.unparse(node.body[0]) == "..."
        or (len(names) > 1 and is_said_above(known, names[-2], node.name))
    )


def unsaid(modules):
    """Public classes and functions without a docstring."""
    known = bases(modules)
    return [
        ".".join(names)
        for module in modules
        for node, names in definitions(module)
        if not ast.get_docstring(node) and not needs_none(known, node, names)
    ]


def without_subject(every):
    """Lines of strings that stand alone and begin with ``Of``: of what they say it, not what."""
    return [
        node.lineno
        for node in every
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and str(node.value.value).startswith(("Of ", "That of "))
    ]


def test_what_is_public_says_what_it_is():
    assert len(FILES) > 1000
    assert unsaid([tree(path) for path in FILES]) == []


def test_docstrings_have_a_subject():
    found = {path.relative_to(ROOT).as_posix(): without_subject(nodes(path)) for path in FILES}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_rules_can_fail():
    above = 'class Above:\n  "It is."\n  def run(self):\n    "Runs."\n'
    below = 'class Below(Above):\n  "As well."\n  def run(self): pass\n  def walk(self): pass\n'
    text = f"{above}{below}def lost(): pass\ndef _private(): pass\n"
    assert unsaid([ast.parse(text)]) == ["lost", "Below.walk"]
    assert without_subject(ast.walk(ast.parse('MOST = 3\n"""Of rows."""\n"""Rows."""'))) == [2]
