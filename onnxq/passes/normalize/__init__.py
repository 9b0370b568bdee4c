"""Passes that bring any legal model into the one shape the other steps rely on; what it computes stays."""
