"""The verbs of the command: the path of a module is what the user types.

``txnlog txns why`` is ``txns/why.py``; ``txnlog offsets ls`` and other groups of a few short verbs
are one file. A group's package lists its verbs, in the order of its help.
"""
