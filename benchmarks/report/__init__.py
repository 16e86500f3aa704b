"""A report of bundles as one page: for those who sign a deployment off, and those who debug one.

Reading order: contents, checks, licences, speed, attention, gathering, charts, page. The templates
are beside them.
"""
