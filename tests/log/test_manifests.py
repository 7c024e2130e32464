"""What is settled is left to manifests: everything reads the same, and a commit costs the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from disturbed_storages import HookedStorage
from steps import another, append, begin, new_store, values

from txnlog import names
from txnlog.admin.maintenance_steps import nothing  # noqa: F401
