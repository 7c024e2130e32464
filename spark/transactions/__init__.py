"""``transaction(...)`` and what is made of it: ``foreach_batch`` and ``catch_up``.

Not called ``transaction``: the module of that name would hide the function in ``txnlog.spark``.
"""
