"""CSL for Cerebras wafers: a layout, one file per phase, a host program."""

from meshc.backends.csl.emit import check, emit
from meshc.backends.csl.host_file import Vocabulary
from meshc.backends.csl.kernels.choices import Choices
from meshc.backends.csl.pe.pe_file import Needs, needs
from meshc.backends.csl.report import summary

__all__ = ["Choices", "Needs", "Vocabulary", "check", "emit", "needs", "summary"]
