"""Passes that write what has several spellings in the one that runtimes are fast at; `prepare.py` names them."""
