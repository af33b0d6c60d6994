"""The ``gpu-dev`` command and ``gpudev_cli.client``, the one HTTP client. They know JSON and nothing else.

Reading order: ``client`` (talks to the portal), ``config`` (which portal, which token), ``words`` (times
and waits), ``tables`` (what a terminal shows), ``command`` (the commands).
"""
