"""The promises of every storage, as checks to run on your own filesystem or server.

    python -m txnlog.testing.conformance s3://bucket/folder --option endpoint_url=http://...

The tests of txnlog run the very same checks on each of its adapters.
"""
