"""What there are no steps of tasks for is refused in words."""

from dataclasses import replace

import pytest
from drawn_decoders import Drawn
from float64_decoders import Decoder
from latent_decoders import LatentDecoder
from task_steps import Judge

from meshc.backends.cuda.executor import CXX
from meshc.backends.cuda.tasks.families import MOST_TASKS
from meshc.support.diagnostics import MeshcError

SMALL = Decoder(hidden=32, heads=2, groups=1, lanes=16, features=32, words=20, layers=1)
DRAWN = Drawn(SMALL, "f16", 1, 40, 16, 16, 16, 1, False, 132)
LATENT = LatentDecoder(32, 2, 32, 24, 8, 16, 32, 20, 1, 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 17}, r"\[cuda-shape\]: a step has 17 requests"),
        ({"tokens": 24}, r"\[cuda-shape\]: runs of 24 tokens do not begin where pages of 16 do"),
        ({"parts": 4}, r"\[cuda-shape\]: parts of 8 values are no whole blocks of 16"),
    ],
)
def test_other_shapes_are_refused(changes, words, tmp_path):
    with pytest.raises(MeshcError, match=words):
        Judge.of(replace(DRAWN, **changes), 1, tmp_path)


def test_more_tasks_than_are_counted_are_refused(tmp_path):
    drawn = replace(DRAWN, decoder=replace(SMALL, words=MOST_TASKS + 16), rows=1)
    with pytest.raises(MeshcError, match=r"\[cuda-shape\]: the phase .* tasks, and 4194304 are"):
        Judge.of(drawn, 1, tmp_path)


def test_more_parts_than_a_head_has_lanes_are_refused(tmp_path):
    drawn = replace(DRAWN, decoder=replace(SMALL, lanes=6))
    with pytest.raises(MeshcError, match=r"\[no-tasks\].*16 parts of the 6 lanes of a head"):
        Judge.of(drawn, 1, tmp_path, 16, "lanes")


@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
def test_rows_of_heads_that_are_no_sixteens_are_filled_up(tmp_path):
    Judge.of(replace(DRAWN, decoder=LATENT, positions=((21,),), cores=4), 1, tmp_path).check()
