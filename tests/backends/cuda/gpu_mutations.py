"""Single edits of kernels of several GPUs and of the executor's memory of them, made by rules.

Rules of :mod:`mutations` apply to both as well; these are of what only several GPUs have.
"""

import re
from collections.abc import Iterator

from mutations import RULES, Edit, Mutation, mutations

CALLS = r"meet_gpus|store_to_all|put_signal|wait_signal|let_next_grid_start|load8"
IN_KERNELS = (
    ("call dropped", rf"(?<!void )(?:mc::)?\b(?:{CALLS})\(.*\);", ";"),
    ("other rows", r"i \* gpus \+ rank", "i * gpus"),
    ("other rows", r"i \* gpus \+ rank", "i + rank"),
    ("other rows", r"(?<=int i = )mc::block\(\)", "0"),
    ("other rows", r"(?<=i \+= )mc::blocks\(\)", "1"),
    ("other rows", r"(?<=\+ rank )<(?= tokens)", "<="),
    ("other rows", r"(?<=< )tokens(?=;)", "tokens - 1"),
    ("other rows", r"\(size_t\)i\b", "(size_t)0"),
    ("other place", r"\brow \+", "own_row +"),
    ("other place", r"\bown_row \+", "0 +"),
    ("other place", r"\bword \* LANES(?! \+ k)", "word"),
    ("other place", r"\bn \* THREADS", "n"),
    ("other place", r"\bn \* THREADS", "0"),
    ("other place", r"(?<=[ (])\+ at\b", "+ 0"),
    ("other GPU", r"\[gpu\]", "[0]"),
    ("other GPU", r"(?<=int gpu = )0", "1"),
    ("other GPU", r"(?<=gpu < )gpus(?=;)", "gpus - 1"),
    ("same half", r"half \^= 1", "half ^= 0"),
    ("same half", r"half \* WARPS", "0"),
    ("other warps", r"(?<=w < )WARPS", "WARPS - 1"),
    ("other warps", r" \+ mc::warp\(\)(?=\])", ""),
    ("other warps", r"mc::lane\(\) == 0", "mc::lane() == 1"),
    ("other number", r"(?<=/ )HIDDEN", "PITCH"),
    ("other number", r"(?<=/ )HIDDEN", "(HIDDEN + 1)"),
    ("other number", r" \+ EPSILON", ""),
    ("other number", r"\bscale \* gains\[k\]", "scale"),
    ("other number", r"\bscale \* gains\[k\]", "gains[k]"),
    ("other number", r"mc::warp_sum\(squares\)", "squares"),
    ("other number", r"mc::warp_sum\(squares\)", "mc::warp_sum<16>(squares)"),
    ("other number", r"(?<=values\[n\]\[k\], )squares", "0.0f"),
    ("other number", r"\bsquares = 0\.0f", "squares = 1.0f"),
    ("other number", r"= 0\.0f(?=;$)", "= 1.0f"),
    ("other number", r"(?<=\] \+= )(?:low|high)\.\w", "0.0f"),
    ("other number", r"= high\b", "= low"),
    ("other number", r"= stream\[1\]|= stream\[0\]", "= stream[0]"),
    ("not stored", r"stream\[\d\] = \w+;", ";"),
    ("other signal", r"(?<=block\(\) )\* gpus \+ rank\b", "* gpus + peer"),
    ("other signal", r"\* gpus \+ peer\b", "* gpus + rank"),
    ("other signal", r"\bsignals\[peer\]", "signals[rank]"),
    ("other signal", r"\bsignals\[rank\]", "signals[peer]"),
    ("other signal", r"block\(\) \* gpus \+ ", ""),
    ("other signal", r"peer < gpus", "peer + 1 < gpus"),
    ("other arguments", r"(?<=signals, )rank, gpus", "0, gpus"),
    ("other arguments", r"(?<=signals, )rank, gpus", "rank, 1"),
)  # fmt: skip
IN_EXECUTOR = (
    ("known anyway", r"(?<=return )!later\(access, point\)", "true"),
    ("known anyway", r"(?<=access\.epoch )<(?= (?:known\.closed|state\.epochs)\[block\])", "<="),
    ("known anyway", r"(?<=return )known\.fronts >> .* & 1", "true"),
    ("known anyway", r"holds\(state\.\w+\[\w+(?:\(\))?\], access\)", "true"),
    ("never known", r"holds\(state\.\w+\[\w+(?:\(\))?\], access\)", "false"),
    ("never known", r"(?<=if \()access\.who == NOBODY \|\| ", ""),
    ("not handed on", r"join\(.*\);", ";"),
    ("not handed on", r"know_\w+\(.*\);", ";"),
    ("not handed on", r"to\.fronts \|= from\.fronts;", ";"),
    ("not handed on", r"state\.own\[me\(\)\]\.fronts \|= .*;", ";"),
    ("not counted", r"state\.epochs\[number\]\+\+;", ";"),
    ("not counted", r"state\.counts\[thread\]\+\+", "state.counts[thread]"),
    ("not counted", r"given->link_bytes \+= bytes;", ";"),
    ("not forgotten", r"own = \{\};", ";"),
    ("not forgotten", r"state\.released\.clear\(\);", ";"),
    ("not checked", r"(?:gpus::)?\b(?:check|use|add_reader)\(.*\);", ";"),
    ("not checked", r"if \(!is_known\(.*\)\) report\(.*\);", ";"),
    ("not checked", r"(?:cell\.write = mine|cell\.read = \{\}|cell\.read = reader);", ";"),
    ("not checked", r"part\.gpu != gpu", "true"),
    ("not checked", r"part\.ended = true;", ";"),
    ("not delayed", r"if \(!late\(\)\) \{", "if (true) {"),
    ("never seen", r"settle\(part\);|settle_here\(\);", ";"),
    ("never seen", r"memcpy\(store\.to, .*\);", ";"),
    ("never seen", r"memcpy\(part\.at, .*\);", ";"),
    ("seen early", r"if \(!is_known\(store\.by\)\) return false;", ";"),
    ("seen early", r"__builtin_memset\(.*\);", ";"),
    ("seen early", r"memset\(part\.at, .*\);", ";"),
    ("other GPU", r"part\.gpu == here_gpu\(\)", "true"),
    ("other GPU", r"\bsums\[i\] \+= ", "sums[i] = "),
    ("other GPU", r"(?<=FRONTS \+ )gpu\b(?=\})", "0"),
    ("signal", r"\*slot = \d;", ";"),
    ("signal", r"while \(!?\*slot\) sleep\(.*\);", ";"),
    ("signal", r"gpus::(?:release|acquire)\(slot\);", ";"),
    ("signal", r"wake\(slot, .*\);", ";"),
    ("misuse", r"if \(.*\) fail\(.*\);", ";"),
    ("misuse", r"one\.held == held", "true"),
    ("misuse", r"if \(found == words \+ one\.bytes / 4\) continue;", "continue;"),
)  # fmt: skip


def _rule(patterns):
    def rule(line: str) -> Iterator[Edit]:
        for fault, pattern, new in patterns:
            for found in re.finditer(pattern, line):
                yield fault, *found.span(), found.expand(new)

    return rule


def kernel_mutations(file: str, text: str) -> Iterator[Mutation]:
    """Edits of an emitted kernel, or of a header that it includes."""
    return mutations(file, text, (*RULES, _rule(IN_KERNELS)))


def executor_mutations(file: str, text: str) -> Iterator[Mutation]:
    """Edits of the executor's memory of several GPUs."""
    return mutations(file, text, (_rule(IN_EXECUTOR),))
