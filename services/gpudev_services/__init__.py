"""The portal's services: ``controller`` (admits, starts, ends) and ``web`` (pages and API).

Each runs by ``python -m``. ``notify`` carries messages to people, inside the controller's process. ``hub`` is
the one adapter to JupyterHub's REST API.
"""
