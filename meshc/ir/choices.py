"""What can be chosen of how many: the bounds of ``top_k`` and ``arg_max`` at every level."""

from __future__ import annotations

MOST_CHOICES = 1 << 24
"""Elements of which one is chosen by its index at most: f32 counts so far."""


def choice_mistake(
    extent: int, count: int, groups: int, kept_groups: int, group_top: int
) -> str | None:
    """Why ``count`` of ``extent`` elements cannot be chosen from ``kept_groups`` of ``groups``,
    which are as good as their ``group_top`` best elements; None if they can."""
    if extent % groups:
        return f"{extent} elements are not {groups} groups of equal size"
    size = extent // groups
    if kept_groups > groups or group_top > size:
        return f"of {groups} groups of {size}, {kept_groups} are kept by their best {group_top}"
    if count > kept_groups * size:
        return f"{count} are chosen of {kept_groups * size} elements"
    return None
