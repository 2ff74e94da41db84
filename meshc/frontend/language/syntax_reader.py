"""Text to syntax tree: the grammar of ``.mesh`` and the tree's translation into :mod:`ast`."""

from __future__ import annotations

from dataclasses import replace

from meshc.frontend.language.ast import (
    Argument,
    Assign,
    Block,
    Call,
    Chain,
    Choice,
    Constant,
    Dtype,
    Expression,
    File,
    Heads,
    Literal,
    Name,
    Parameter,
    Params,
    RawModel,
    Reference,
    Repeat,
    Return,
    Statement,
    Tensor,
    Unary,
    Use,
)
from meshc.support.diagnostics import fail
from meshc.support.grammar import Grammar, Leaf, Node
from meshc.support.spans import Source

MAX_NAME = 64
MAX_DIGITS = 24

_STATEMENT = "a statement"
_OPERATOR = "an operator"

GRAMMAR = Grammar(
    package="meshc.frontend.language",
    file="mesh.lark",
    code="source-syntax",
    too_large_code="source-too-large",
    nesting_code="source-nesting",
    words={
        "NAME": "a name",
        "NUMBER": "a number",
        "STRING": "a quoted text",
        "TRUTH": "true or false",
        "NOT": "'not'",
        "SUM_SIGN": _OPERATOR,
        "PRODUCT_SIGN": _OPERATOR,
        "COMPARE": _OPERATOR,
        "AND": _OPERATOR,
        "OR": _OPERATOR,
        "DTYPE_ROLE": _STATEMENT,
        "HEADS": _STATEMENT,
        "IF": _STATEMENT,
        "MAIN": _STATEMENT,
        "PARAM": _STATEMENT,
        "REPEAT": _STATEMENT,
        "RETURN": _STATEMENT,
    },
    hints={
        ";": "a line end is enough between statements",
        "^": "there is no power; write x * x",
        "'": "texts stand in double quotes",
        ":": "blocks are written with braces: { ... }",
    },
)


def read(source: Source) -> File:
    """The syntax tree of one text; raises MeshcError when it is not of the language."""
    tree = GRAMMAR.parse(source)
    uses = tuple(_use(n) for n in tree.nodes() if n.rule == "use")
    blocks = tuple(_block(n, source.name) for n in tree.nodes() if n.rule == "block")
    models = tuple(_model(n, source.name) for n in tree.nodes() if n.rule == "model")
    return File(uses, blocks, models)


def _use(node: Node) -> Use:
    leaf = node.leaf(0)
    return Use(leaf.text.strip('"'), leaf.kind == "STRING", leaf.span)


def _model(node: Node, scope: str) -> RawModel:
    listed = node.maybe(1)
    parameters = tuple(_parameter(n) for n in listed.nodes()) if listed else ()
    name = _identifier(node.leaf(0))
    # The blocks inside a model see its parameters; they get a scope of their own.
    return RawModel(name, parameters, _body(node.node(2), f"{scope}:{name}"), node.leaf(0).span)


def _block(node: Node, scope: str) -> Block:
    return _piece(_identifier(node.leaf(0)), node.leaf(0), node.children[1:], scope)


def _main(node: Node, scope: str) -> Block:
    keyword = Leaf("MAIN", "main", replace(node.span, length=len("main")))
    return _piece("main", keyword, node.children, scope)


def _piece(name: str, leaf: Leaf, rest: tuple[Node | Leaf | None, ...], scope: str) -> Block:
    """A block or ``main`` from its last three parts: formals, results, body."""
    formals, results, body = rest
    assert isinstance(body, Node)
    return Block(
        name,
        tuple(_formal(n) for n in formals.nodes()) if isinstance(formals, Node) else (),
        tuple(_dims(n) for n in results.nodes()) if isinstance(results, Node) else (),
        _body(body, scope),
        leaf.span,
        scope,
    )


def _formal(node: Node) -> Tensor | Parameter:
    return _tensor(node) if node.rule == "tensor" else _parameter(node)


def _parameter(node: Node) -> Parameter:
    default = node.maybe(1)
    name = _identifier(node.leaf(0))
    return Parameter(name, _expression(default) if default else None, node.leaf(0).span)


def _tensor(node: Node) -> Tensor:
    """A tensor with its dims, or a bare name."""
    dims = _dims(node.node(1)) if node.rule == "tensor" else None
    return Tensor(_identifier(node.leaf(0)), dims, node.leaf(0).span)


def _dims(node: Node) -> tuple[Name, ...]:
    return tuple(_name(n.leaf(0)) for n in node.nodes())


def _name(leaf: Leaf) -> Name:
    return Name(_identifier(leaf), leaf.span)


def _identifier(leaf: Leaf) -> str:
    if len(leaf.text) > MAX_NAME:
        fail("source-syntax", f"names have at most {MAX_NAME} characters", leaf.span)
    return leaf.text


def _body(node: Node, scope: str) -> tuple[Statement, ...]:
    return tuple(_statement(n, scope) for n in node.nodes())


def _statement(node: Node, scope: str) -> Statement:
    match node.rule:
        case "dtype":
            return Dtype(node.leaf(0).text, _name(node.leaf(1)), node.span)
        case "heads":
            return Heads(_name(node.leaf(0)), _name(node.leaf(1)), node.span)
        case "params":
            return Params(tuple(_tensor(n) for n in node.nodes()), node.span)
        case "assign":
            *targets, value = node.nodes()
            return Assign(tuple(_tensor(n) for n in targets), _expression(value), node.span)
        case "return":
            return _return(node)
        case "repeat":
            return Repeat(_name(node.leaf(0)), _body(node.node(1), scope), node.leaf(0).span)
        case "choice":
            return _choice(node, scope)
        case "block":
            return _block(node, scope)
        case _:
            return _main(node, scope)


def _return(node: Node) -> Return:
    *values, when = node.children
    condition = _expression(when.node(0)) if isinstance(when, Node) else None
    return Return(
        tuple(_expression(v) for v in values if isinstance(v, Node)), condition, node.span
    )


def _choice(node: Node, scope: str) -> Choice:
    condition, body, *others = node.nodes()
    branches = [(_expression(condition), _body(body, scope))]
    otherwise: tuple[Statement, ...] = ()
    for other in others:
        if other.rule == "otherwise":
            otherwise = _body(other.node(0), scope)
        else:
            branches.append((_expression(other.node(0)), _body(other.node(1), scope)))
    return Choice(tuple(branches), otherwise, node.span)


def _expression(node: Node) -> Expression:
    match node.rule:
        case "number":
            return Literal(_number(node.leaf(0)), node.span)
        case "text":
            return Literal(node.leaf(0).text[1:-1], node.span)
        case "truth":
            return Literal(node.leaf(0).text == "true", node.span)
        case "reference":
            return Reference(tuple(_identifier(leaf) for leaf in node.leaves()), node.span)
        case "unary":
            return Unary(node.leaf(0).text, _expression(node.node(1)), node.span)
        case "chain":
            signs = tuple(Name(leaf.text, leaf.span) for leaf in node.leaves())
            return Chain(tuple(_expression(n) for n in node.nodes()), signs, node.span)
        case _:
            return _call(node)


def _call(node: Node) -> Call:
    listed = node.maybe(1)
    arguments = tuple(_argument(n) for n in listed.nodes()) if listed else ()
    return Call(_identifier(node.leaf(0)), arguments, node.span)


def _argument(node: Node) -> Argument:
    if node.rule == "keyword":
        return Argument(_identifier(node.leaf(0)), _expression(node.node(1)), node.span)
    return Argument("", _expression(node), node.span)


def _number(leaf: Leaf) -> Constant:
    """An int where the text has neither point nor exponent."""
    if len(leaf.text) > MAX_DIGITS:
        fail("bad-constant", f"numbers have at most {MAX_DIGITS} characters", leaf.span)
    value = int(leaf.text) if leaf.text.isdigit() else float(leaf.text)
    if value in (float("inf"), float("-inf")):
        fail("bad-constant", f"'{leaf.text}' is too large for a number", leaf.span)
    return value
