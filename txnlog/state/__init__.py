"""What a store knows, as pure folds over typed entries: no I/O, no clock, no randomness here.

Each persisted kind has its module: the entries, the state they fold into, and the rules that say
whether one more entry may be added. Times, ids and nonces are passed in.
"""
