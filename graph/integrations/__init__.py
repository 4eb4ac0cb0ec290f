"""What the integrations with searches that already run share: a list re-ranked, and a proxy.

Evidence of relevance, labels, the order, and the memory of what groups are owed live here. The
HTTP routes and the proxy itself live in ``graph/service``.
"""
