"""The tests, as a package: of the work tree, while txnlog is the installed one."""
