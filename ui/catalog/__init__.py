"""The topics of a store as tables of an Iceberg REST catalog: `txnlog catalog serve`."""
