"""Models whose params are called what kernels of tasks call something else."""

import re
from dataclasses import replace

import pytest
from drawn_decoders import Drawn
from float64_decoders import Decoder
from task_steps import Judge

from meshc.backends.cuda.executor import CXX

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

PLAIN = Decoder(hidden=32, heads=2, groups=1, lanes=16, features=32, words=20, biases="qof")
OF_LANGUAGE = {
    "if", "else", "true", "false", "and", "or", "not", "share", "return", "model", "block", "main",
    "param", "heads", "weights", "accumulate", "repeat", "when", "use", "x", "q", "k", "v", "o",
    "h", "y", "u", "a", "s", "tokens", "layers", "cache",
}  # fmt: skip
CPP = {
    "class", "namespace", "nullptr", "constexpr", "static_cast", "decltype", "noexcept", "extern",
    "linux", "unix", "errno", "NULL", "INT_MAX", "EOF", "int", "float", "xor", "bitand", "requires",
    "co_yield",
}  # fmt: skip


def judged(names, folder):
    own = [name for name in PLAIN._params() if name != "embedding"]
    renamed = tuple(zip(own, names, strict=False))
    drawn = Drawn(
        replace(PLAIN, renamed=renamed), "f16", 2, 40, 16, 16, 16, 1, False, 132, ((39, 5),)
    )
    judge = Judge.of(drawn, 1, folder)
    judge.check()
    return judge.step.text


def test_words_of_cpp_and_all_names_of_a_kernel_can_be_params(tmp_path):
    text = re.sub(r"//.*|#.*", "", judged((), tmp_path))
    assigned = {*re.findall(r"^ *(\w+)(?=\[.*\] = | = )", PLAIN.text(), re.M)}
    words = {*re.findall(r"(?<![\w:.])[A-Za-z]\w*", text)} | CPP
    names = sorted(words - OF_LANGUAGE - assigned - PLAIN._params().keys() - {*"BLEHGDFVS"})
    assert len(names) > 100 and {"T", "ring", "WORKERS", "step_"} <= {*names}
    step = len(PLAIN._params()) - 1
    for first in range(0, len(names), step):
        judged(names[first : first + step], tmp_path)
