"""The draft-tree explorer: recorded or live runs as a picture that can be walked through.

`data.py` turns events into the compact values that the page reads, `page.py` makes the page of them. The page itself
is `assets/webui/explorer/`: plain JavaScript and CSS, one picture for a live chat, a replay and an exported file.
"""

from eagle_chat.webui.explorer.data import cycle_data, page_data, runs_data
from eagle_chat.webui.explorer.page import explorer_assets, html_page

__all__ = ["cycle_data", "explorer_assets", "html_page", "page_data", "runs_data"]
