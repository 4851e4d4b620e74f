"""`python -m eagle_chat` is `eagle-chat`."""

from __future__ import annotations

import sys

from eagle_chat.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
