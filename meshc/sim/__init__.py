"""An independent CSL compiler front end, wafer simulator and host stand-in.

Shares nothing with the compiler that emits CSL: it reads CSL text only.
"""
