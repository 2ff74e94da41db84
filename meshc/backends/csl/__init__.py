"""CSL for Cerebras wafers: a layout, one file per phase, a host program."""

from meshc.backends.csl.emit import ARCHITECTURES, emit

__all__ = ["ARCHITECTURES", "emit"]
