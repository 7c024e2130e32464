"""A standby: a copy of a store that follows at its own pace, and is consistent at any moment."""
