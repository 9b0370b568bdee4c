"""Prints the commands of a Markdown file's `sh` blocks, in order: what a reader would type."""

import re
import sys
from pathlib import Path

for block in re.findall(r"^```sh\n(.*?)^```", Path(sys.argv[1]).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
    print(block, end="")
