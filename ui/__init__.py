"""A store in the browser: ``txnlog ui``. Pages are made here; nothing comes from elsewhere."""
