"""What all tests of groups share."""

from __future__ import annotations

import pytest

from tests.support.groups.group_in_steps import Group


@pytest.fixture
def group() -> Group:
    """An empty group, whose consumers are polled step by step."""
    return Group()
