"""A libcuda.so.1 for other processes: the fake driver, whose kernels run in the executor."""

import json
import shutil
from pathlib import Path

from fake_driver import C

from meshc.backends.cuda.executor import QUICK, Library, cpu_kernels
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.support.native import Toolchain

_C = Toolchain(C.language, C.variable, C.commands, C.flags, ("-ldl",))
_KNOWING = """
#include <dlfcn.h>
#include <stdlib.h>

void fake_kernel(const char* name, int count, const int* sizes, void* entry);

static void* opened(const char* path, int how) {{
    void* found = dlopen(path, how);
    if (!found) abort();
    return found;
}}

__attribute__((constructor)) static void know(void) {{
    {system}
{kernels}
}}
"""
_KERNEL = """    {{
        static const int sizes[] = {{{sizes}}};
        void* entry = dlsym(opened({library}, RTLD_NOW), "run_{name}");
        if (!entry) abort();
        fake_kernel("{name}", {count}, sizes, entry);
    }}"""


def stand_in(program, folder):
    """``folder`` with a driver for the kernels of the compiled directory ``program``."""
    manifest = json.loads((program / "manifest.json").read_text())
    known = []
    for name, kernel in manifest["kernels"].items():
        text = (program / kernel["file"]).read_text(encoding="utf-8")
        library = Library(text, toolchain=QUICK)._library._name
        sizes = compile_cubin(text).kernels[name].parameters
        words = {"name": name, "library": json.dumps(library), "count": len(sizes)}
        known.append(_KERNEL.format(sizes=", ".join(map(str, sizes)), **words))
    system = cpu_kernels._system()
    opening = "" if system is None else f"opened({json.dumps(system._name)}, RTLD_NOW|RTLD_GLOBAL);"
    texts = {p.name: p.read_text(encoding="utf-8") for p in Path(__file__).parent.glob("driver/*")}
    headers = {name: texts.pop(name) for name in list(texts) if name.endswith(".h")}
    texts["known.c"] = _KNOWING.format(system=opening, kernels="\n".join(known))
    folder.mkdir(exist_ok=True)
    shutil.copy(_C.build(texts, headers, "stand-in-driver"), folder / "libcuda.so.1")
    return folder
