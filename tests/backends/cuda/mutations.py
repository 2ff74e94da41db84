"""Single edits of the CUDA library and kernels, made by rules so that no place is left out.

A rule looks at one line of code at a time and proposes edits of one fault class. A mutation is
data: the file, the line with its number among equal lines, the columns and the text put in. It can
so be applied to the same kernel emitted for another shape.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

CALLS = (
    "group_sync|block_sync|cluster_arrive_relaxed|cluster_wait|cluster_sync|warp_sync|arrive_at"
    "|arrive|wait_for_peers|wait|cluster_publish|expect|push|copy_fence|init|init_fence|copy_in"
    "|wait_for_previous_grid|let_next_grid_start|rms_norm|rotate|"
    r"ring\.set_up|ring\.acquire|ring\.fill|ring\.release"
)
ARRIVALS = r"(?<=init\(published, )CLUSTER|(?<=set_up\()WARPS|(?<=i, )consumers"
CHOICE = (  # what stands in front of a question mark
    r"(?:[=(,] |return |\()"
    r"((?:peer|part|seen|active|count|i|W\w+)\b[^?=(]*(?:==[^?=(]*)?|has\(n\)) \?"
)
Edit = tuple[str, int, int, str]  # fault, first and last column, new text

# Fault class, pattern, replacement of the whole match.
PATTERNS = (
    ("call dropped", rf"(?:mc::)?\b(?:{CALLS})\(.*\);", ";"),
    ("not by all", r"mc::wait_for_previous_grid\(\);", r"if (mc::thread()) \g<0>"),
    ("let go early", r"mc::wait_for_previous_grid\(\);", r"mc::let_next_grid_start(); \g<0>"),
    ("other scope", r"\bwait_for_peers\(", "wait("),
    ("tile not awaited", r"ring\.ready\(", "ring.place("),
    ("other parity", r"& 1\b", "& 1 ^ 1"),
    ("other parity", r"\bparity\)", "parity ^ 1)"),
    ("other parity", r"(?<=gathered, )0\b", "1"),
    ("other parity", r"(?<=published, )0\b", "1"),
    ("other parity", r"(?<=published, )1\b", "0"),
    ("other phase", r"item / STAGES - 1", "item / STAGES"),
    ("other phase", r"item / STAGES(?=\))", "item / STAGES - 1"),
    ("other stage", r"item % STAGES", "(item + 1) % STAGES"),
    ("other stage", r"\bitem % STAGES\b", "0"),
    ("same half", r"(?<=\+ )\w+ % 2(?= \*)", "0"),
    ("same half", r"(?<=\+ )\(i - begin\) % 2(?= \*)", "0"),
    ("an arrival more", r"(?<=init\(gathered, )1\b|(?<=init\(full \+ i, )1\b", "2"),
    ("an arrival more", ARRIVALS, r"\g<0> + 1"),
    ("an arrival less", ARRIVALS, r"\g<0> - 1"),
    ("a warp less", r"(?<=group_sync\()(group, members|1, WORKERS|group, WORKERS)", r"\g<0> - 32"),
    ("other bytes", r"\b(?<!u32 )bytes(?=[,)])", "bytes - 16"),
    ("other bytes", r"\b(?<!u32 )bytes(?=[,)])", "bytes + 16"),
    ("other bytes", r" \* \((?:int|u32)\)sizeof\((?:T|float)\)", ""),
    ("other bytes", r"\(stride - count\)", "stride"),
    ("other bytes", r"(?<=acquire\(item, )2 \* ", ""),
    ("other half", r" \+ TILE_BYTES / 2(?: / \(int\)sizeof\(T\))?", ""),
    ("other place", r"i / N \* stride", "0"),
    ("other peer", r"(?<=push\(share, )i % N", "rank"),
    ("other rank", r"\brank \*", "0 *"),
    ("other rank", r"rank == CLUSTER - 1", "rank == 0"),
    ("other rank", r"(?<=cached\[b\], )rank", "0"),
    ("other peer", r"(?<=arrive_at\(published, )me", "cluster_rank()"),
    ("other peer", r"(?<=load_peer\(mine \+ i, )peer", "rank"),
    ("other peer", r"peer == rank", "true"),
    ("other head", r"\(size_t\)head\b", "(size_t)0"),
    ("other operator", r"\blarger\(([^,()]+(?:\[[^\]]*\])?), ([^,()]+)\)", r"\1"),
    ("other operator", r"\ba \+ b\b", "a - b"),
    ("other operator", r" \* keep\b| \* take\b", ""),
    ("other operator", r"-\(b \* sine\)", "(b * sine)"),
    ("other operator", r"\ba \* sine\b", "-(a * sine)"),
    ("other operator", r"(?<=[\])]) \*= ", " += "),
    ("other operator", r" /= ", " *= "),
    ("other operator", r"(?<=\w|\]) \+= (?!WORKERS|THREADS|TOKENS|RUN|4 \*|members)", " = "),
    ("no scale", r" \* (?:SCALE|scale)\b", ""),
    ("no epsilon", r" \+ epsilon", ""),
    ("other start", r"(?<== )LOWEST|(?<=return )-1e30f", "0.0f"),
    ("other place", r"(?<=[\w\])]) % (?:PAGE|HEAD|OWN_ROWS|OUT_LANES|TOKEN_LANES)\b", ""),
    ("no window", r"\bcached \+ 1 - WINDOW", "cached - WINDOW"),
    ("no window", r"cached \+ 1 > WINDOW", "cached > WINDOW"),
    ("rounded down", r"\(([\w ]+) \+ (?:TILE_TOKENS|CLUSTER|WORKERS) - 1\)", r"(\1)"),
)  # fmt: skip


def _balanced(line: str, start: int) -> int:
    """Behind the parenthesis that closes the one at ``start``; 0 when it is on another line."""
    depth = 0
    for at in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[at], 0)
        if depth == 0:
            return at + 1
    return 0


def _split(line: str, start: int, end: int, separator: str) -> list[tuple[int, int]]:
    """Columns of the parts of ``line[start:end]`` between separators outside of parentheses."""
    parts, depth, begin = [], 0, start
    for at in range(start, end):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(line[at], 0)
        if depth == 0 and line.startswith(separator, at):
            parts.append((begin, at))
            begin = at + len(separator)
    return [*parts, (begin, end)]


def _conditions(line: str) -> Iterator[tuple[int, int]]:
    for found in re.finditer(r"\bif \(", line):
        end = _balanced(line, found.end() - 1)
        if end:
            yield found.end(), end - 1
    for found in re.finditer(CHOICE, line):
        yield found.span(1)
    for found in re.finditer(r"const bool \w+ = (.*);", line):
        yield found.span(1)


def _guards(line: str) -> Iterator[Edit]:
    """Conditions that always hold, without one of their parts, off by one."""
    for start, end in _conditions(line):
        if re.fullmatch(r"[A-Z_]+", line[start:end]):
            continue  # of the shape, not of the thread
        yield "guard dropped", start, end, "true"
        parts = _split(line, start, end, " && ")
        for part in parts if len(parts) > 1 else ():
            yield "part of a guard dropped", *part, "true"
        for part in parts:
            for found in re.finditer(r" (<|>=|>|<=) ", line[part[0] : part[1]]):
                other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}[found[1]]
                at = part[0] + found.start()
                yield "bound off by one", at, at + len(found[0]), f" {other} "


def _loops(line: str) -> Iterator[Edit]:
    """A last round left out, or one too many; not where only constants are run through."""
    found = re.match(r"for \((?:const )?\w+ \w+ = .*?;.*? [<>]=? (.*?);", line)
    if found and re.search("TILES|STAGES|WARPS|CHUNKS|OWN|N$|count|tiles|end", found[1]):
        yield "loop ends early", *found.span(1), f"({found[1]}) - 1"
        yield "loop ends late", *found.span(1), f"({found[1]}) + 1"


def _least(line: str) -> Iterator[Edit]:
    """One of the two arguments of a minimum."""
    for found in re.finditer(r"\bmin\(", line):
        end = _balanced(line, found.end() - 1)
        for part in _split(line, found.end(), end - 1, ", ") if end else ():
            yield "no minimum", found.start(), end, f"({line[slice(*part)]})"


def _patterns(line: str) -> Iterator[Edit]:
    for fault, pattern, new in PATTERNS:
        for found in re.finditer(pattern, line):
            yield fault, *found.span(), found.expand(new)


Rule = Callable[[str], Iterator[Edit]]
RULES: tuple[Rule, ...] = (_patterns, _guards, _loops, _least)


@dataclass(frozen=True)
class Mutation:
    """``old`` at ``column`` of the ``nth`` of equal lines becomes ``new``; lines are stripped."""

    file: str
    fault: str
    line: str
    nth: int
    column: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """The line with the edit in it."""
        end = self.column + len(self.old)
        edited = f"{self.line[: self.column]}<{self.old} => {self.new}>{self.line[end:]}"
        return f"{self.file}: {edited}" + (f" #{self.nth + 1}" if self.nth else "")

    def apply(self, text: str) -> str | None:
        """The text with the edit; None when it has no such line."""
        seen = 0
        lines = text.split("\n")
        for n, line in enumerate(lines):
            if _code(line) != self.line:
                continue
            if seen == self.nth:
                at = len(line) - len(line.lstrip()) + self.column
                lines[n] = line[:at] + self.new + line[at + len(self.old) :]
                return "\n".join(lines)
            seen += 1
        return None


def _code(line: str) -> str:
    """A line without its comment and margin."""
    return line.split("//")[0].strip()


def mutations(file: str, text: str, rules: Sequence[Rule] = RULES) -> Iterator[Mutation]:
    """All edits of a file by the ``rules``."""
    counts: dict[str, int] = {}
    taken = set()
    for whole in text.split("\n"):
        line = _code(whole)
        # Not edited: declarations of shapes and of functions, which the compiler holds.
        if not line or line.startswith(("#", "constexpr int", "static constexpr", "template")):
            continue
        nth = counts[line] = counts.get(line, -1) + 1
        for rule in rules:
            for fault, start, end, new in rule(line):
                found = Mutation(file, fault, line, nth, start, line[start:end], new)
                key = found.apply(line) if nth == 0 else (nth, found.new, start, end)
                if (line, nth, key) not in taken and line[start:end] != new:
                    taken.add((line, nth, key))
                    yield found
