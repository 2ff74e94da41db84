"""CSL for Cerebras wafers: a layout, one file per phase, a host program."""

from meshc.backends.csl.emit import check, emit, with_entry
from meshc.backends.csl.host_file import Vocabulary
from meshc.backends.csl.pe.core_memory import CoreMemory
from meshc.backends.csl.pe.needs import Needs, core_memory, needs
from meshc.backends.csl.phases_file import reads_prompts
from meshc.backends.csl.report import summary
from meshc.backends.csl.timing.breakdown import Prediction

__all__ = [
    "CoreMemory",
    "Needs",
    "Prediction",
    "Vocabulary",
    "check",
    "core_memory",
    "emit",
    "needs",
    "reads_prompts",
    "summary",
    "with_entry",
]
