"""Pages and API for people, at ``/services/gpu-dev/``.

Reading order: ``base`` (who asks, errors, templates); ``home``, ``reservations``, ``api``, ``health``: a noun
each with its routes at the bottom; ``app`` puts them together.
"""
