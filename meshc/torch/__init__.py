"""Language models as modules of torch whose steps are compiled CUDA kernels (extra ``torch``).

>>> model = meshc.torch.compile(AutoModelForCausalLM.from_pretrained("..."), seq=2048)
>>> model.generate(**tokenizer("The capital of France", return_tensors="pt"))

torch and transformers are imported when the first of these names is used; see docs/library.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshc.support.extras import module_of_extra

__all__ = ["CompiledModel", "ProgramCache", "compile", "step"]

if TYPE_CHECKING:
    from meshc.torch.caches import ProgramCache
    from meshc.torch.compiling import compile
    from meshc.torch.module import CompiledModel
    from meshc.torch.operator import step
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'meshc.torch' has no attribute '{name}'")
        return getattr(module_of_extra("meshc.torch.compiling", "torch", "meshc.torch"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
