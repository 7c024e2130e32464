"""Which process goes on next: by a seed, or every order up to a number of preemptions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Choose = Callable[[Sequence[int]], int]
"""From the numbers of the processes that can go on, in ascending order, picks one."""


def random_choice(seed: int) -> Choose:
    """Any order, decided by a seed."""
    return random.Random(seed).choice


def preemptions(switches: Sequence[int]) -> Choose:
    """Run the first process that can, but pass on to the next one at these steps.

    Walking through all small sets of switches visits every interleaving with as many
    preemptions: the bound that finds most races (after Musuvathi and Qadeer's CHESS).
    """
    step = -1
    current = 0

    def choose(running: Sequence[int]) -> int:
        nonlocal step, current
        step += 1
        if step in switches or current not in running:
            later = [number for number in running if number > current]
            current = later[0] if later else running[0]
        return current

    return choose
