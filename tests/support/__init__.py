"""What tests of several rooms share, in rooms like theirs."""
