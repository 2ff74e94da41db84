"""One page that shows a recorded compile or run: its data as JSON, and the HTML around it."""

from meshc.view.data import page_data
from meshc.view.page import page_of
from meshc.view.recorded import Recorded, read_recorded

__all__ = ["Recorded", "page_data", "page_of", "read_recorded"]
