"""The expression half of the parser. Precedence follows Zig, not C."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from meshc.sim.lang import tree as t
from meshc.sim.lang.cursor import Cursor
from meshc.sim.lang.lexer import text_bytes, unescape
from meshc.support.spans import Span

Number = TypeVar("Number", int, float)

_LEVELS: tuple[tuple[str, ...], ...] = (
    ("or",),
    ("and",),
    ("==", "!=", "<", ">", "<=", ">="),
    ("&", "^", "|"),
    ("<<", ">>"),
    ("+", "-", "++"),
    ("*", "/", "%"),
)

_MAX_DEPTH = 50
_MAX_DIGITS = 1000
_TYPE_NODES = (t.Name, t.Field, t.Call, t.Builtin, t.StructDecl)


class ExpressionParser(Cursor):
    """Parses expressions and types."""

    depth = 0

    def expression(self) -> t.Expr:
        """Any expression."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.problem("expression is nested too deeply")
        try:
            return self._binary(0)
        finally:
            self.depth -= 1

    def block(self, label: str | None = None) -> t.Block:
        """A block of statements (the statement parser provides it)."""
        raise NotImplementedError

    def _binary(self, level: int) -> t.Expr:
        if level == len(_LEVELS):
            return self._prefix()
        left = self._binary(level + 1)
        while self.kind in _LEVELS[level]:
            span, op = self.span(), self.advance().kind
            left = t.Binary(span, op, left, self._binary(level + 1))
        return left

    def _prefix(self) -> t.Expr:
        span = self.span()
        match self.kind:
            case "-" | "!" | "~":
                return t.Unary(span, self.advance().kind, self._prefix())
            case "&":
                self.advance()
                return t.AddressOf(span, self._prefix())
            case "*":
                self.advance()
                const = self.accept("const")
                return t.PointerType(span, False, const, self._prefix())
            case "comptime":
                self.advance()
                return t.ComptimeExpr(span, self.expression())
            case "if":
                return self._if_expr()
            case "switch":
                return self.switch()
            case "[":
                return self._array_type_or_literal()
            case "fn" | "task":
                return self._fn_type()
        return self._postfix(self._primary())

    def type_expr(self) -> t.Expr:
        """A type where a following ``{`` is not part of it (results, declarations)."""
        span = self.span()
        match self.kind:
            case "*":
                self.advance()
                const = self.accept("const")
                return t.PointerType(span, False, const, self.type_expr())
            case "[":
                return self._array_type()
            case "fn" | "task":
                return self._fn_type()
            case "anytype":
                self.advance()
                return t.AnyType(span)
            case "enum" | "struct" | "packed" | "union" | "extern":
                return self._container()
            case "builtin":
                return self._postfix(self._builtin(), literals=False)
            case "(":
                return self._prefix()
            case "if" | "switch":
                return self.expression()
        name = t.Name(span, self.expect("name", "a type").text)
        return self._postfix(name, literals=False)

    def _array_type(self) -> t.Expr:
        span = self.span()
        self.expect("[")
        if self.kind == "*" and self.peek() == "]":
            self.advance()
            self.advance()
            const = self.accept("const")
            return t.PointerType(span, True, const, self.type_expr())
        dims: list[t.Expr | None] = []
        while self.kind != "]":
            if self.kind == "name" and self.tokens[self.at].text == "_" and self.peek() in ",]":
                self.advance()
                dims.append(None)
            else:
                dims.append(self.expression())
            if not self.accept(","):
                break
        self.expect("]")
        self.accept("const")
        return t.ArrayType(span, dims, self.type_expr())

    def _array_type_or_literal(self) -> t.Expr:
        kind = self._array_type()
        if self.kind == "{":
            return self._postfix(self._literal(kind))
        return kind

    def _fn_type(self) -> t.Expr:
        span = self.span()
        task = self.advance().kind == "task"
        params = self.parameters()
        return t.FnType(span, params, self.type_expr(), task)

    def parameters(self) -> list[t.Param]:
        """``(a: T, comptime b: U, V)``; names are optional as in function types."""
        self.expect("(")
        params: list[t.Param] = []
        while self.kind != ")":
            span = self.span()
            comptime = self.accept("comptime")
            if self.kind == "name" and self.peek() == ":":
                name = self.advance().text
                self.advance()
                params.append(t.Param(span, name, self.type_expr(), None, comptime))
            else:
                params.append(t.Param(span, "_", self.type_expr(), None, comptime))
            if not self.accept(","):
                break
        self.expect(")")
        return params

    def _if_expr(self) -> t.Expr:
        span = self.span()
        self.expect("if")
        self.expect("(")
        cond = self.expression()
        self.expect(")")
        then = self.expression()
        other = self.expression() if self.accept("else") else None
        return t.IfExpr(span, cond, then, other)

    def switch(self) -> t.SwitchExpr:
        """``switch (x) { a, b...c => body, else => body }``"""
        span = self.span()
        self.expect("switch")
        self.expect("(")
        subject = self.expression()
        self.expect(")")
        self.expect("{")
        prongs: list[t.SwitchProng] = []
        while self.kind != "}":
            prongs.append(self._prong())
            if not self.accept(",") and self.kind != "}" and self.peek(-1) != "}":
                self.problem(f"expected ',' or '}}' after a switch prong, found {self.found()}")
        self.expect("}")
        return t.SwitchExpr(span, subject, prongs)

    def _prong(self) -> t.SwitchProng:
        span, items = self.span(), list[t.Expr | tuple[t.Expr, t.Expr]]()
        if not self.accept("else"):
            while self.kind != "=>":
                low = self.expression()
                items.append((low, self.expression()) if self.accept("...") else low)
                if not self.accept(","):
                    break
        self.expect("=>")
        return t.SwitchProng(span, items, self.prong_body())

    def prong_body(self) -> t.Stmt | t.Expr:
        """What stands right of ``=>``."""
        return self.block() if self.kind == "{" else self.expression()

    def _primary(self) -> t.Expr:
        span = self.span()
        match self.kind:
            case "int":
                return t.IntLit(span, self._number(_int_value))
            case "float":
                return t.FloatLit(span, self._number(_float_value))
            case "string":
                return self._string(span)
            case "char":
                return t.IntLit(span, _char_value(self.advance().text))
            case "true" | "false":
                return t.BoolLit(span, self.advance().kind == "true")
            case "builtin":
                return self._builtin()
            case "name":
                return self._name(span)
            case "(":
                self.advance()
                inner = self.expression()
                self.expect(")")
                return inner
            case ".":
                return self._dot(span)
            case "{":
                self.advance()
                self.expect("}")
                return t.VoidLit(span)
            case "|":
                return self._tensor_access(span)
            case "enum" | "struct" | "packed" | "union" | "extern":
                return self._container()
            case "anytype":
                self.advance()
                return t.AnyType(span)
        self.problem(f"expected an expression, found {self.found()}")
        raise AssertionError

    def _number(self, value: Callable[[str], Number]) -> Number:
        """The value of the current literal, which the lexer lets through by its letters alone."""
        text = self.tokens[self.at].text.replace("_", "")
        if len(text) > _MAX_DIGITS:
            self.problem("this number is too long")
        try:
            number = value(text)
        except (ValueError, OverflowError):
            octal = text.isdecimal() and set(text) <= set("01234567")
            meant = f"; an octal number is written 0o{text.lstrip('0')}" if octal else ""
            self.problem(f"'{text}' is no number{meant}")
        self.advance()
        return number

    def _string(self, span: Span) -> t.Expr:
        text = unescape(self.advance().text)
        while self.kind == "string":
            text += unescape(self.advance().text)
        return t.StrLit(span, text)

    def _name(self, span: Span) -> t.Expr:
        if self.tokens[self.at].text == "asm" and self.peek() in ("(", "name"):
            self.problem("inline assembly is not supported by the simulator", "csl-unsupported")
        if self.peek() == ":" and self.peek(2) == "{":
            label = self.advance().text
            self.advance()
            return t.BlockExpr(span, self.block(label))
        return t.Name(span, self.advance().text)

    def _builtin(self) -> t.Expr:
        span = self.span()
        name = self.advance().text[1:]
        return t.Builtin(span, name, self._arguments())

    def _arguments(self) -> list[t.Expr]:
        self.expect("(")
        args: list[t.Expr] = []
        while self.kind != ")":
            args.append(self.expression())
            if not self.accept(","):
                break
        self.expect(")")
        return args

    def _dot(self, span: Span) -> t.Expr:
        self.advance()
        if self.kind == "{":
            return self._literal(None)
        if self.kind in ("name", "align", "export", "layout", "param", "task"):
            return t.EnumLit(span, self.advance().text)
        self.problem(f"expected '{{' or a member name after '.', found {self.found()}")
        raise AssertionError

    def _literal(self, kind: t.Expr | None) -> t.StructLit:
        span = self.span()
        self.expect("{")
        names: list[str | None] = []
        values: list[t.Expr] = []
        while self.kind != "}":
            named = self.kind == "." and self.peek(2) == "="
            if named:
                self.advance()
                names.append(self.advance().text)
                self.advance()
            else:
                names.append(None)
            values.append(self.expression())
            if not self.accept(","):
                break
        self.expect("}", "',' or '}'")
        return t.StructLit(span, kind, names, values)

    def _tensor_access(self, span: Span) -> t.Expr:
        self.expect("|")
        variables = [self.expect("name").text]
        while self.accept(","):
            variables.append(self.expect("name").text)
        self.expect("|")
        self.expect("{")
        extents = [self.expression()]
        while self.accept(","):
            extents.append(self.expression())
        self.expect("}")
        self.expect("->")
        return t.TensorAccess(span, variables, extents, self.expression())

    def _container(self) -> t.Expr:
        span, kind = self.span(), self.advance().kind
        if kind in ("packed", "extern"):
            layout, kind = kind, self.kind
            if kind not in ("struct", "union"):
                self.problem(f"expected 'struct' or 'union' after '{layout}', found {self.found()}")
            self.advance()
            kind = f"{layout} {kind}"
        base = None
        if self.accept("("):
            base = self.type_expr()
            self.expect(")")
        self.expect("{")
        if kind == "enum":
            return self._enum_members(span, base)
        fields: list[tuple[str, t.Expr, t.Expr | None]] = []
        while self.kind != "}":
            name = self.expect("name", "a field name").text
            self.expect(":")
            type_ = self.type_expr()
            fields.append((name, type_, self.expression() if self.accept("=") else None))
            if not self.accept(","):
                break
        self.expect("}")
        return t.StructDecl(span, kind, fields)

    def _enum_members(self, span: Span, base: t.Expr | None) -> t.Expr:
        members: list[str] = []
        values: list[t.Expr | None] = []
        while self.kind != "}":
            members.append(self.expect("name", "a member name").text)
            values.append(self.expression() if self.accept("=") else None)
            if not self.accept(","):
                break
        self.expect("}")
        return t.EnumDecl(span, base, members, values)

    def _postfix(self, base: t.Expr, literals: bool = True) -> t.Expr:
        while True:
            span = self.span()
            match self.kind:
                case "(":
                    base = t.Call(span, base, self._arguments())
                case "[":
                    self.advance()
                    indices = [self.expression()]
                    while self.accept(","):
                        if not self.at_kind("]"):
                            indices.append(self.expression())
                    self.expect("]")
                    base = t.Index(span, base, indices)
                case ".*":
                    self.advance()
                    base = t.Deref(span, base)
                case ".":
                    self.advance()
                    token = self.advance()
                    if not (token.text and (token.text[0].isalpha() or token.text[0] == "_")):
                        self.at -= 1
                        self.problem(f"expected a field name after '.', found {self.found()}")
                    base = t.Field(self.lines.span(token.offset, len(token.text)), base, token.text)
                case "{" if literals and isinstance(base, _TYPE_NODES):
                    if not (self.peek() == "}" or (self.peek() == "." and self.peek(3) == "=")):
                        return base
                    base = self._literal(base)
                case _:
                    return base


def _char_value(text: str) -> int:
    character = unescape(text)
    data = text_bytes(character)
    return data[0] if len(data) == 1 else ord(character)


def _int_value(text: str) -> int:
    return int(text, 0)


def _float_value(text: str) -> float:
    if text[:2].lower() == "0x":
        return float.fromhex(text)
    return float(text)
