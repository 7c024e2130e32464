"""The command, run as a user's shell would."""
