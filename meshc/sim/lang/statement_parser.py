"""The statement and declaration half of the parser."""

from __future__ import annotations

from meshc.sim.lang import tree as t
from meshc.sim.lang.cursor import SyntaxProblem
from meshc.sim.lang.expressions import ExpressionParser
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source

_MAX_DEPTH = 60
_ASSIGN = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="))
_TOP_LEVEL = frozenset(
    (
        "param",
        "const",
        "var",
        "fn",
        "task",
        "comptime",
        "layout",
        "export",
        "extern",
        "inline",
        "noinline",
    )
)


def parse(source: Source, diagnostics: Diagnostics) -> t.File:
    """The syntax tree of ``source``; every syntax error found is added to ``diagnostics``."""
    return Parser(source, diagnostics).file()


def parse_type(source: Source) -> t.Expr:
    """The type ``source`` spells. Raises MeshcError ``csl-syntax``."""
    diagnostics = Diagnostics()
    parser = Parser(source, diagnostics)
    try:
        kind = parser.type_expr()
        parser.expect("eof", "the end of the type")
    except SyntaxProblem:
        raise MeshcError(diagnostics.errors) from None
    return kind


class Parser(ExpressionParser):
    """Recursive descent over one file; after an error it goes on with the next declaration."""

    def file(self) -> t.File:
        """The whole file."""
        file = t.File(self.lines.source.name)
        while self.kind != "eof":
            start = self.at
            try:
                self._item(file)
            except SyntaxProblem:
                self._recover(start)
        return file

    def _recover(self, start: int) -> None:
        """Skip to the next line that starts a declaration in the first column."""
        if self.at == start:
            self.advance()
        while self.kind != "eof":
            first_column = self.span().column == 1
            if first_column and self.kind in _TOP_LEVEL:
                return
            self.advance()

    def _item(self, file: t.File) -> None:
        span = self.span()
        match self.kind:
            case "param":
                file.params.append(self._param())
            case "comptime" if self.peek() == "{":
                self.advance()
                file.comptime.append(t.ComptimeBlock(span, self.block()))
            case "layout":
                self.advance()
                if file.layout is not None:
                    self.diagnostics.error("csl-syntax", "a second layout block", span)
                file.layout = t.LayoutBlock(span, self.block())
            case ";":
                self.advance()
            case _:
                decl = self._declaration()
                if decl.name in file.decls:
                    self.diagnostics.error(
                        "csl-redeclared", f"'{decl.name}' is declared twice", decl.span
                    )
                file.decls[decl.name] = decl

    def _param(self) -> t.Param:
        self.expect("param")
        span = self.span()
        name = self.expect("name", "a parameter name").text
        kind = self.type_expr() if self.accept(":") else None
        default = self.expression() if self.accept("=") else None
        self.expect(";")
        return t.Param(span, name, kind, default)

    def _declaration(self) -> t.VarDecl | t.FnDecl:
        export = inline = comptime = extern = False
        while self.kind in ("export", "extern", "inline", "noinline", "comptime"):
            word = self.advance().kind
            export |= word == "export"
            extern |= word == "extern"
            inline |= word == "inline"
            comptime |= word == "comptime"
        if self.kind in ("fn", "task"):
            return self._function(inline, export)
        if self.kind in ("const", "var"):
            variable = self._variable(export, comptime)
            variable.extern = extern
            return variable
        self.problem(f"expected a declaration, found {self.found()}")
        raise AssertionError

    def _function(self, inline: bool, export: bool) -> t.FnDecl:
        task = self.advance().kind == "task"
        span = self.span()
        name = self.expect("name", "a function name").text
        params = self.parameters()
        self._attributes()
        result = self.type_expr()
        if self.accept(";"):
            return t.FnDecl(span, name, params, result, None, task, inline, export)
        return t.FnDecl(span, name, params, result, self.block(), task, inline, export)

    def _attributes(self) -> tuple[t.Expr | None, str | None]:
        """``align(n)``, ``linkname(s)``, ``linksection(s)`` in any order."""
        align, section = None, None
        while self.kind in ("align", "linkname", "linksection"):
            word = self.advance().kind
            self.expect("(")
            value = self.expression()
            self.expect(")")
            if word == "align":
                align = value
            elif isinstance(value, t.StrLit):
                section = value.value
        return align, section

    def _variable(self, export: bool, comptime: bool) -> t.VarDecl:
        const = self.advance().kind == "const"
        span = self.span()
        name = self.expect("name", "a variable name").text
        kind = self.type_expr() if self.accept(":") else None
        align, section = self._attributes()
        init = self.expression() if self.accept("=") else None
        self.expect(";")
        return t.VarDecl(span, name, const, kind, init, align, export, comptime, section)

    def block(self, label: str | None = None) -> t.Block:
        """``{ statements }``"""
        span = self.span()
        self.expect("{")
        body: list[t.Stmt] = []
        while self.kind not in ("}", "eof"):
            start = self.at
            try:
                body.append(self.statement())
            except SyntaxProblem:
                self._resync(start)
        self.expect("}")
        return t.Block(span, body, label)

    def _resync(self, start: int) -> None:
        """Skip to the end of a broken statement, or unwind when it seems to end the block."""
        if self.at == start:
            self.advance()
        while self.kind not in (";", "}", "eof"):
            if self.span().column == 1 and self.kind in _TOP_LEVEL:
                raise SyntaxProblem
            self.advance()
        self.accept(";")

    def statement(self) -> t.Stmt:
        """One statement."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.problem("statement is nested too deeply")
        try:
            return self._statement()
        finally:
            self.depth -= 1

    def _statement(self) -> t.Stmt:
        span = self.span()
        match self.kind:
            case "{":
                return self.block()
            case "comptime" if self.peek() == "{":
                self.advance()
                block = self.block()
                block.comptime = True
                return block
            case "comptime" if self.peek() in ("var", "const"):
                self.advance()
                return self._variable(False, True)
            case "const" | "var":
                return self._variable(False, False)
            case "if":
                return self._if()
            case "while" | "for" | "inline":
                return self._loop(None)
            case "name" if self.peek() == ":":
                return self._labelled()
            case "switch":
                subject = self.switch()
                self.accept(";")
                return t.ExprStmt(span, subject)
            case "return":
                self.advance()
                value = None if self.at_kind(";") else self.expression()
                self.expect(";")
                return t.Return(span, value)
            case "break" | "continue":
                return self._jump()
        return self._simple(need_semicolon=True)

    def _simple(self, need_semicolon: bool) -> t.Stmt:
        span, target = self.span(), self.expression()
        stmt: t.Stmt
        if self.kind in _ASSIGN:
            span = self.span()
            op = self.advance().kind[:-1]
            stmt = t.Assign(span, op, target, self.expression())
        else:
            stmt = t.ExprStmt(span, target)
        if need_semicolon and self.kind != "else":
            self.expect(";")
        return stmt

    def prong_body(self) -> t.Stmt | t.Expr:
        """A block, an assignment, a jump or a value."""
        if self.kind == "{" and self.peek() != "}":
            return self.block()
        if self.kind in ("return", "break", "continue"):
            span, word = self.span(), self.advance().kind
            if word == "return":
                return t.Return(span, None if self.kind in (",", "}") else self.expression())
            return t.Break(span, None, None) if word == "break" else t.Continue(span, None)
        stmt = self._simple(need_semicolon=False)
        return stmt.expr if isinstance(stmt, t.ExprStmt) else stmt

    def _if(self) -> t.Stmt:
        span = self.span()
        self.expect("if")
        self.expect("(")
        cond = self.expression()
        self.expect(")")
        then = self.statement()
        other = self.statement() if self.accept("else") else None
        return t.If(span, cond, then, other)

    def _labelled(self) -> t.Stmt:
        label = self.advance().text
        self.advance()
        if self.kind == "{":
            block = self.block(label)
            self.accept(";")
            return block
        return self._loop(label)

    def _loop(self, label: str | None) -> t.Stmt:
        span, inline = self.span(), self.accept("inline")
        if self.kind == "while":
            return self._while(label, inline)
        self.expect("for", "'for' or 'while'")
        self.expect("(")
        subject = self.expression()
        self.expect(")")
        captures: list[str] = []
        if self.accept("|"):
            captures.append(self.expect("name").text)
            if self.accept(","):
                captures.append(self.expect("name").text)
            self.expect("|")
        return t.For(span, subject, captures, self.statement(), label, inline)

    def _while(self, label: str | None, inline: bool) -> t.Stmt:
        span = self.span()
        self.expect("while")
        self.expect("(")
        cond = self.expression()
        self.expect(")")
        step: t.Stmt | None = None
        if self.accept(":"):
            self.expect("(")
            step = self._simple(need_semicolon=False)
            self.expect(")")
        return t.While(span, cond, step, self.statement(), label, inline)

    def _jump(self) -> t.Stmt:
        span, word = self.span(), self.advance().kind
        label = None
        if self.accept(":"):
            label = self.expect("name", "a label").text
        value = None if self.kind == ";" or word == "continue" else self.expression()
        self.expect(";")
        return t.Break(span, label, value) if word == "break" else t.Continue(span, label)
