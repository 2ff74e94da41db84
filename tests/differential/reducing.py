"""Making a failing case small: ever simpler cases that fail in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from cases import AnyCase, Case, Unsharp, expected
from draw_checkpoints import Checkpoint, simpler
from drawn_programs import Apply, Call, Program, Repeat, Statement, used_only

Fails = Callable[[AnyCase], bool]


def reduced(case: AnyCase, fails: Fails, most: int = 400) -> AnyCase:
    """The smallest case found that ``fails`` holds for, trying ``most`` of them."""
    tried = 0
    progress = True
    while progress and tried < most:
        progress = False
        for candidate in candidates(case):
            if tried >= most:
                break
            if not _is_sound(candidate):
                continue
            tried += 1
            if fails(candidate):
                case, progress = candidate, True
                break
    return case


def candidates(case: AnyCase) -> Iterator[AnyCase]:
    """Cases that are a little simpler, the greatest leaps first."""
    if isinstance(case, Checkpoint):
        yield from simpler(case)
        return
    for program in _programs(case.program):
        yield replace(case, program=program)
    yield from _with_fewer_options(case)
    yield from _with_smaller_runs(case)
    yield from _with_smaller_extents(case)


def _is_sound(case: AnyCase) -> bool:
    """Whether the reference can compute and judge it."""
    try:
        expected(case)
    except Unsharp:
        return False
    except (KeyError, ValueError, IndexError, AttributeError):
        return False  # a dim is missing or does not fit
    return True


def _programs(program: Program) -> Iterator[Program]:
    for n in range(len(program.returns)):
        if len(program.returns) > 1:
            kept = program.returns[:n] + program.returns[n + 1 :]
            yield used_only(replace(program, returns=kept, stated=()))
    if program.early:
        yield used_only(replace(program, early=""))
    if program.stated:
        yield replace(program, stated=())
    for body, ends in _bodies(program.body, program.returns):
        yield used_only(replace(program, body=body, returns=ends, stated=()))
    if any(isinstance(s, Apply) and (s.stated or s.chosen) for s in program.body):
        plain = [
            replace(s, stated=(), chosen=False) if isinstance(s, Apply) else s for s in program.body
        ]
        yield replace(program, body=tuple(plain))
    if program.flags and not any(getattr(s, "chosen", False) for s in program.body):
        yield replace(program, flags=())


def _bodies(
    body: tuple[Statement, ...], ends: tuple[str, ...]
) -> Iterator[tuple[tuple[Statement, ...], tuple[str, ...]]]:
    """Bodies with one statement less, its result replaced by one of its operands."""
    for n in reversed(range(len(body))):
        statement = body[n]
        rest = body[:n] + body[n + 1 :]
        if isinstance(statement, Repeat):
            names = {c.name: c.start for c in statement.carried}
            yield _renamed(rest, names), tuple(names.get(e, e) for e in ends)
            for inner, inner_ends in _bodies(
                statement.body, tuple(c.end for c in statement.carried)
            ):
                carried = tuple(
                    replace(c, end=e) for c, e in zip(statement.carried, inner_ends, strict=True)
                )
                loop = replace(statement, body=inner, carried=carried)
                yield (*body[:n], loop, *body[n + 1 :]), ends
            for m in range(len(statement.carried)):
                if len(statement.carried) > 1:
                    kept = statement.carried[:m] + statement.carried[m + 1 :]
                    gone = {statement.carried[m].name: statement.carried[m].start}
                    loop = replace(statement, carried=kept, body=_renamed(statement.body, gone))
                    yield (
                        (*body[:n], loop, *_renamed(body[n + 1 :], gone)),
                        tuple(gone.get(e, e) for e in ends),
                    )
            continue
        if isinstance(statement, Call):
            yield body[:n] + _expanded(statement) + body[n + 1 :], ends
        for operand in dict.fromkeys(statement.args):
            names = dict.fromkeys(statement.results, operand)
            yield _renamed(rest, names), tuple(names.get(e, e) for e in ends)


def _expanded(call: Call) -> tuple[Statement, ...]:
    """The statements of a block in the place of its call."""
    names = {t.name: arg for t, arg in zip(call.block.formals, call.args, strict=True)}
    names |= dict(zip(call.block.returns, call.results, strict=True))
    own = {s.result: f"{call.results[0]}_{s.result}" for s in call.block.body}
    names = {**own, **names}
    return tuple(
        replace(s, result=names[s.result], args=tuple(names[a] for a in s.args), stated=())
        for s in call.block.body
    )


def _renamed(body: tuple[Statement, ...], names: dict[str, str]) -> tuple[Statement, ...]:
    """The statements with operands replaced."""
    found: list[Statement] = []
    for s in body:
        if isinstance(s, Repeat):
            carried = tuple(
                replace(c, start=names.get(c.start, c.start), end=names.get(c.end, c.end))
                for c in s.carried
            )
            found.append(replace(s, carried=carried, body=_renamed(s.body, names)))
        else:
            found.append(replace(s, args=tuple(names.get(a, a) for a in s.args)))
    return tuple(found)


def _with_fewer_options(case: Case) -> Iterator[Case]:
    for name in case.options:
        if name not in ("seq", "mesh", "phase", "device"):
            yield _optioned(case, {n: v for n, v in case.options.items() if n != name})
    for choice in case.options.get("algo", ()):
        yield _optioned(case, {**case.options, "algo": (choice,)})
    if case.order:
        yield replace(case, order=False)
    if "mesh" not in case.options:
        return
    columns, rows = case.plane
    for smaller in ((1, 1), (columns, 1), (1, rows), (columns - 1, rows), (columns, rows - 1)):
        if min(smaller) >= 1 and smaller != (columns, rows):
            yield case.on_plane(*smaller)


def _optioned(case: Case, options: dict[str, object]) -> Case:
    return replace(case, options=options)


def _with_smaller_runs(case: Case) -> Iterator[Case]:
    if case.steps > 1:
        yield replace(case, steps=1)
        yield replace(case, steps=case.steps - 1)
    if case.prompt > 1:
        yield replace(case, prompt=1)
        yield replace(case, prompt=case.prompt - 1)
    used = {
        "generate": case.prompt + case.steps - 1,
        "batch": case.prompt + case.steps - 1,
        "answers": case.prompt + case.steps - 1 + case.options.get("drafts", 0),
        "decode": case.steps,
        "prefill": case.prompt,
        "requests": case.prompt + case.steps - 1,
    }.get(case.form, 0)
    if case.capacity > used > 0:
        yield _optioned(case, {**case.options, "seq": used})
        yield _optioned(case, {**case.options, "seq": case.capacity - 1})


def _with_smaller_extents(case: Case) -> Iterator[Case]:
    extents = dict(case.program.extents)
    for dim, extent in extents.items():
        for smaller in dict.fromkeys((1, 2, 8, extent // 2, extent - 8, extent - 2, extent - 1)):
            if 1 <= smaller < extent:
                changed = {**extents, dim: smaller}
                yield replace(case, program=replace(case.program, extents=changed))
