"""Single edits of emitted programs, made by rules so that no place is left out.

A rule looks at one line of a PE's program and proposes edits of one fault class. A mutation is
data: the program, the line with its number among equal lines, the columns and the text put in.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

# Fault class, pattern, replacement of the whole match. Scratch arrays have room between them.
PATTERNS = (
    ("missing reduction", r"@fadd([sh])\((\w+), (\w+_in_\w+), \2\)", r"@fmov\1(\2, \3)"),
    ("missing reduction", r"@fadd([sh])\((\w+_out_\w+), (\w+_in_\w+), \w+\)", r"@fmov\1(\2, \3)"),
    ("missing reduction", r"@fmax([sh])\((\w+), (\w+_in_\w+), \2\)", r"@fmov\1(\2, \3)"),
    ("other reduction", r"@fmax(?=[sh]\(&)", "@fadd"),
    ("other reduction", r"@fadd(?=[sh]\(&)", "@fmax"),
    ("other guard", r"if \((\w+)_relays\)", r"if (\1_receives)"),
    ("other guard", r"if \((\w+)_receives\)", r"if (\1_sends)"),
    ("other guard", r"if \((cast_\w+)_receives\)", r"if (!\1_receives)"),
    ("other guard", r"(my_\w+) == (pos[^)]*)\)", r"\1 == (pos + 1) % 2)"),
    ("other guard", r"(my_\w+) == (pos[^)]*)\)", r"true)"),
    ("stale slot", r"(kv_state\w*\[[^\]]*\]) \+ kv_state\w*\[[^\]]*\]", r"\1"),
    ("stale slot", r"(?<=const slot = )@as\(i16, [^;]*(?=;)", "0"),
    ("stale slot", r"\] \+= 1;", "] += 0;"),
    ("stale slot", r"\] -= 1;", "] -= 0;"),
    ("stale slot", r" \* slot\b", " * (slot + 1)"),
    ("stale slot", r"(?<=_slots = )(\d+)(?=;)", r"\1 - 1"),
    ("other layer", r"\b\w+ \* layer\b", "0"),
    ("other layer", r"\blayer\b(?=\))", "0"),
    ("other mask", r"if \(behind > 0\)", "if (behind > 1)"),
    ("other mask", r"if \(more > 0\)", "if (false)"),
    ("other mask", r"const empty = (\w+) - ", r"const empty = \1 + 1 - "),
    ("other mask", r"(?<=increment_dsd_offset\(row, )first", "0"),
    ("other mask", r"const more = empty - behind", "const more = empty"),
    ("other turn", r"\bsines(\w*)\b", r"cosines\1"),
    ("other turn", r"\bcosines(\w*)\b", r"sines\1"),
    ("other turn", r"(?<=f32, )place % 128", "place % 64"),
    ("other turn", r"place - place % 128", "place"),
    ("other turn", r", high\)", ", low)"),
    ("other turn", r", whole\)", ", high)"),
    ("other shift", r"\(([at](?:_\d+)?|step_\d+) \+ 1\) % \d+", "0"),
    ("other shift", r"\b([at](?:_\d+)?|step_\d+) % (\d+)\b", r"(\1 + 1) % \2"),
    ("other shift", r"if \((\w+) < (my_rank_\w+)\)", r"if (\1 + 1 < \2)"),
    ("other shift", r"(?<=pc = if \()((?:[at]|step)_?\d*) < (\d+)(?=\))", r"\1 + 1 < \2"),
    ("other shift", r"(rotate_\w+)\(my_rank_\w+ % (\d+)\)", r"\1(1)"),
    ("other shift", r"if \((step_\d+) == (.*) - 1\)", r"if (\1 == \2)"),
    ("other row", r"(?<=const place = )(.*) \+ my_rank_\w+", r"\1"),
    ("other row", r"(?<=const query = )(.*) \+ 1(?=;)", r"\1"),
    ("other row", r"const beyond = (\w+) - ", r"const beyond = \1 - 1 - "),
    ("other row", r"(?<=const first = @as\(i16, \()([^()]*) \+ my_rank_\w+(?=\))", r"\1"),
    ("other row", r"\b\w+_per_\w+ \* row\b", "0"),
    ("other row", r"(?<=const limit = @as\(i16, )len\b", "len + 1"),
    ("other row", r"\(len - my_rank_y \+ \d+\)", "len"),
    ("other row", r"(?<== )\(len \+ \d+\)", "len"),
    ("other phase", r"phase == (\d)", r"phase != \1"),
    ("other phase", r"(?<=phase = )(\d)(?=;)", r"2 - \1"),
    ("other request", r"\b\w+ \* request\w*", "0"),
    ("other request", r"(pos_of_rounds)\[\w+\]", r"\1[0]"),
    ("other request", r"\bpos >= 0", "true"),
    ("other sign", r"@fsub(?=[sh]\()", "@fadd"),
    ("other sign", r"@fadd(?=s\(\w+, \w+, scratch)", "@fsub"),
    ("other sign", r"@fnegs\(", "@fabss("),
    ("other number", r"(?<=, )-?\d\.\d+(?:e-?\d+)?(?=\))", "0.5"),
    ("other number", r"(?<= / )(\d+)\.0\b", r"2\1.0"),
    ("other place", r"(?<!scratch_f32)(?<!scratch_f16)(?<!widened)\[i \+ (\d+)\]", r"[i + \1 - 1]"),
    ("other place", r"\[i \+ (\w+) \* j\]", r"[\1 * i + j]"),
    ("other place", r"(?<=_per_layer = )(\d+)(?=;)", r"\1 - 1"),
    ("other pace", r"(?<=[\[ ])2 \* i\b", "i"),
    ("statement dropped", r"^@f\w+\(.*\);", ""),
    ("statement dropped", r"^(?:gemm|turn|silu|exp_sub)\w*\(.*\);", ""),
)  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """An edit of line ``line`` of ``program``, the ``nth`` (from 0) of the lines with this text:
    what stands from column ``first`` to ``last`` becomes ``new``."""

    program: str
    line: str
    nth: int
    first: int
    last: int
    new: str
    fault: str

    def __str__(self) -> str:
        line = self.line
        inside = f"<{line[self.first : self.last]} => {self.new}>"
        number = f" #{self.nth + 1}" if self.nth else ""
        return f"{self.program}: {line[: self.first]}{inside}{line[self.last :]}{number}"

    def applied(self, text: str) -> str:
        """``text`` with the edit."""
        seen = 0
        lines = text.split("\n")
        for number, line in enumerate(lines):
            if line.strip() == self.line:
                if seen == self.nth:
                    new = self.line[: self.first] + self.new + self.line[self.last :]
                    lines[number] = line.replace(self.line, new)
                    return "\n".join(lines)
                seen += 1
        raise ValueError(f"no such line: {self.line}")


def mutations(program: str, text: str, angles: bool) -> Iterator[Mutation]:
    """All edits of the text of a PE's program, those of the function that works out ``angles`` if
    it is to be edited as well. Comments are left out."""
    seen: Counter[str] = Counter()
    known = set()
    function = ""
    for line in text.split("\n"):
        code = line.strip()
        function = line if line.startswith("fn ") else function
        nth = seen[code]
        seen[code] += 1
        end = code.find("//")
        for fault, pattern, new in PATTERNS:
            if function.startswith("fn turn_") and not angles:
                continue
            for match in re.finditer(pattern, code if end < 0 else code[:end]):
                changed = match.expand(new) if "\\" in new else new
                found = Mutation(program, code, nth, *match.span(), changed, fault)
                if changed != match[0] and str(found) not in known:
                    known.add(str(found))
                    yield found
