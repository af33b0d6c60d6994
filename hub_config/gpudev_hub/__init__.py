"""The hub: ``jupyterhub_config.py`` and the parts it names.

Reading order: ``jupyterhub_config`` (all of the configuration), ``login`` (who comes in), ``pages`` (the form
and its live figures), ``proxy`` (what stands in front of hub, services and servers in local mode),
``command`` (``gpu-dev-portal``), ``checks`` and ``up`` (everything on one machine with one command).
"""
