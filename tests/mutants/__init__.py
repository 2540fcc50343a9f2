"""Semantic mutations of the package, and the command that sees whether the tests notice them."""
