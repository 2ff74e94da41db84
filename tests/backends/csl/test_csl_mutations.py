"""Single edits of emitted programs: the simulator must notice each, but for those that
change nothing, which are listed with the reason."""

import csl_mutation_judge
import pytest
from csl_mutation_survivors import EQUIVALENT
from csl_mutations import mutations

pytestmark = pytest.mark.models

COUNT = 150
# Edits of different classes of the smallest program; CI takes these alone.
IN_CI, SMALLEST = 8, ("cyclic",)


def unnoticed(edits):
    """Those of the edits that nothing notices."""
    return {str(one) for one in edits if not csl_mutation_judge.judge(one.program, one)}


def test_what_is_emitted_is_right():
    assert csl_mutation_judge.judge("cyclic", None) == ""


def test_edits_of_each_class_are_noticed():
    listed = {text for texts in EQUIVALENT.values() for text in texts}
    edits = csl_mutation_judge.chosen(COUNT, SMALLEST)
    first = [one for one in edits if str(one) not in listed][:IN_CI]
    assert len({one.fault for one in first}) >= 6
    assert unnoticed(first) == set()


@pytest.mark.slow
def test_all_edits_are_noticed_but_those_that_change_nothing():
    listed = {text for texts in EQUIVALENT.values() for text in texts}
    edits = csl_mutation_judge.chosen(COUNT)
    assert len(edits) == COUNT
    assert unnoticed(edits) == listed


def test_an_edit_is_applied_to_its_line_alone():
    text = "fn a() void {\n    if (b_receives) {\n    }\n    if (b_receives) {\n    }\n}"
    edits = [one for one in mutations("p", text, True) if one.new == "if (b_sends)"]
    assert [one.applied(text).split("\n").index("    if (b_sends) {") for one in edits] == [1, 3]
    assert all(one.applied(text).count("b_sends") == 1 for one in edits)
    with pytest.raises(ValueError, match="no such line"):
        edits[0].applied("")
