"""What models spell in one node or several and regions have one step for: normalizations, turned rows, attention."""
