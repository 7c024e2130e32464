"""The verbs of the command: the path of a module is what the user types.

``txnlog groups seek`` is in ``groups.py``. The verbs of ``topics`` and ``records`` are long: each
has a file of its own, as ``topics/trim.py``. A group lists its verbs, in the order of its help.
"""
