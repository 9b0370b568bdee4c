"""One kind of fault a file: the file name is the rule's word, and in camel case the class inside (`doctor/rule.py`)."""
