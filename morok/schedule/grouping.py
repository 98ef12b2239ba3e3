"""Which drafts run as one kernel."""

from __future__ import annotations

from morok.schedule.split import Draft, Split


def group_drafts(split: Split, waits: dict[Draft, set[Draft]]) -> list[list[Draft]]:
    """Each draft alone."""
    return [[draft] for draft in split.drafts]
