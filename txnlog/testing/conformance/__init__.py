"""What every storage must do, as checks that anybody can run on a filesystem or server of theirs.

    python -m txnlog.testing.conformance s3://bucket/folder --option endpoint_url=http://...

The tests of txnlog run the very same checks on each of its adapters.
"""
