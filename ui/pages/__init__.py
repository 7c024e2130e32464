"""The pages: what each shows is read here, and laid out by the template of its name."""
