"""What is free, inside a notebook::

from gpudev_widgets import availability
availability()
"""

from gpudev_widgets.panel import AvailabilityPanel, availability

__all__ = ["AvailabilityPanel", "availability"]
