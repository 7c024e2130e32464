"""A store on several roots: epochs that name the in-sync set, and a storage over the roots'."""
