"""Consumer groups: members in steps, in processes of their own, and models."""
