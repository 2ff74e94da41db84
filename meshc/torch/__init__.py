"""Language models as modules of torch whose steps are compiled CUDA kernels (extra ``torch``).

>>> model = meshc.torch.compile(AutoModelForCausalLM.from_pretrained("..."), seq=2048)
>>> model.generate(**tokenizer("The capital of France", return_tensors="pt"))

Programs of ``torch.export`` become models in the ``.mesh`` language:

>>> imported = meshc.torch.import_exported("layer.pt2")
>>> meshc.compile(imported.load(), target="python")

torch and transformers are imported when the first of these names is used; see docs/own-program.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshc.support.extras import module_of_extra

__all__ = [
    "CompiledModel",
    "ImportedModel",
    "ProgramCache",
    "compile",
    "import_exported",
    "step",
]

_EXPORTED = ("ImportedModel", "import_exported")

if TYPE_CHECKING:
    from meshc.torch.caches import ProgramCache
    from meshc.torch.exported.importing import ImportedModel, import_exported
    from meshc.torch.from_transformers import compile
    from meshc.torch.language_model import CompiledModel
    from meshc.torch.operator import step
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'meshc.torch' has no attribute '{name}'")
        place = "exported.importing" if name in _EXPORTED else "from_transformers"
        return getattr(module_of_extra(f"meshc.torch.{place}", "torch", "meshc.torch"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
