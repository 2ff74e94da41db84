"""CSL for Cerebras wafers: a layout, one file per phase, a host program."""

from meshc.backends.csl.emit import ARCHITECTURES, emit
from meshc.backends.csl.pe_file import predicted_cycles
from meshc.backends.csl.report import summary

__all__ = ["ARCHITECTURES", "emit", "predicted_cycles", "summary"]
