"""Names that values and buffers of tasks cannot have in a kernel."""

_OF_C = """
alignas alignof and asm auto bool break case catch char class const continue default delete do
double else enum explicit export extern false float for friend goto if inline int long max min
mutable namespace new not operator or private protected public register return short signed
sizeof static struct switch template this throw true try typedef typename union unsigned using
virtual void volatile wchar_t while xor
"""
_OF_KERNEL = """
arena b begin cached columns cosine cosines element even first from gains h i item k key keys
lane last lengths locals logits made mc me met new_key new_value odd own pages parts record
ring row run score seen sine sines stored sum target task tiles tokens turn v value
"""

TAKEN = frozenset([*_OF_C.split(), *_OF_KERNEL.split()])
"""Words of C++, and the names of what stands around tasks."""
