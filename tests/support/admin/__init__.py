"""What tests of administration share."""
