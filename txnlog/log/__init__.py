"""The logs of topics, groups and transactional ids: their entries, state and settlement."""
