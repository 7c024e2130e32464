"""What the command can do: the path of a module is what is typed.

``txnlog txns why`` is ``txns/why.py``; ``txnlog offsets ls`` and other groups of a few short verbs
are one file. A group's package lists its verbs, in the order of its help.
"""
