"""A store on several roots: epochs that say who is in sync, and a storage over their storages."""
