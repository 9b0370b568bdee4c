"""python -m onnxq"""

from onnxq.cli import main

main()
