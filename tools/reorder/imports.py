"""Imports each module of penstock in its own forked process: an import cycle shows, whichever module is imported first.

Run in the root of the checkout, with its Python.
"""

import os
import sys
from pathlib import Path

bad = 0
for path in sorted(Path("src/penstock").rglob("*.py")):
    name = ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")
    if name.endswith("__main__"):
        continue
    pid = os.fork()
    if pid == 0:
        try:
            __import__(name)
        except BaseException as error:
            print(name, type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    bad += os.waitpid(pid, 0)[1] != 0
print("modules that cannot be imported first:", bad)
sys.exit(bad > 0)
